"""Values that a cell asks for of tensors that an earlier one made."""

import pytest
import torch
from torch import nn

from meta_magic import MissingValueError, record

VALUES = {
    "item": lambda x: x[0, 0].item(),
    "item of all": lambda x: x.sum().item(),
    "float": lambda x: float(x.mean()),
    "if": lambda x: 1 if x.mean() > 0 else 2,
    "tolist": lambda x: x.tolist(),
    "tolist of a view": lambda x: x.t()[1:].tolist(),
    "numpy": lambda x: x.numpy().tolist(),
    "format": lambda x: f"{x.mean():.3f}",
    "equal": lambda x: torch.equal(x, x.clone()),
    "a mask": lambda x: torch.zeros(3, 4)[x > 0].shape,
    "nonzero": lambda x: x.relu().nonzero().shape,
    "unique": lambda x: x.round().unique().shape,
    "to the CPU": lambda x: x.to("cpu").tolist(),
    "cpu": lambda x: x.cpu().tolist(),
    "after another operator": lambda x: (torch.ones(3), x.tolist())[1],
    "after a write": lambda x: x.add_(1).tolist(),
}


@pytest.mark.parametrize("name", VALUES)
def test_a_value_of_an_earlier_cell_is_that_of_the_cpu(name):
    torch.manual_seed(0)
    wanted = VALUES[name](torch.randn(3, 4))
    torch.manual_seed(0)
    with record():
        x = torch.randn(3, 4)
    with record():
        met = VALUES[name](x)
    assert met == wanted


def test_the_value_of_a_number_of_an_earlier_cell_is_known():
    with record():
        x = torch.ones(3).sum()
    with record():
        met = x.item()
    assert met == 3


def test_a_tensor_of_an_earlier_cell_is_printed_with_its_values():
    with record():
        x = torch.tensor([1.5, 2.5])
    with record():
        text = repr(x)
    assert text == "tensor([1.5000, 2.5000], device='meta', size=(2,))"


def test_a_value_of_two_cells_ago_is_known():
    with record():
        x = torch.ones(3)
    with record():
        y = x * 2
    with record():
        met = y.tolist()
    assert met == [2.0, 2.0, 2.0]


def test_a_module_of_an_earlier_cell_is_moved_to_the_cpu_with_its_values():
    torch.manual_seed(0)
    wanted = nn.Linear(2, 2).state_dict()
    torch.manual_seed(0)
    with record():
        made = nn.Linear(2, 2)
    with record(named="real"):
        made.to("cpu")
    assert all(torch.equal(made.state_dict()[name], wanted[name]) for name in wanted)


def test_a_value_of_an_earlier_cell_that_was_changed_since_is_refused():
    with record():
        x = torch.ones(3)
    x.add_(1)
    with record(), pytest.raises(MissingValueError, match="changed in place outside"):
        x.tolist()
