"""Data that a cell reads: real tensors, arrays and Python values."""

import numpy as np
import pytest
import torch
from torch import nn

from meta_magic import MaterializeError, materialize, record
from tests.unit.eager import assert_bit_equal, build_twice
from tests.unit.materializing.modules import register


def test_a_real_tensor_read_in_the_cell_has_its_values():
    values = torch.arange(4.0)
    with record():
        made = register(torch.empty(4).copy_(values))
    materialize(made)
    assert made.buffer.tolist() == [0, 1, 2, 3]


def test_a_real_tensor_counts_as_it_was_when_recorded():
    values = torch.arange(4.0)
    with record():
        made = register(torch.empty(4).copy_(values))
    values.zero_()
    materialize(made)
    assert made.buffer.tolist() == [0, 1, 2, 3]


def test_a_numpy_array_counts_as_it_was_when_recorded():
    values = np.arange(4, dtype=np.float32)
    with record():
        made = nn.Sequential(
            register(torch.from_numpy(values).to("meta")),
            register(torch.tensor(values)),
            register(torch.as_tensor(values)),
        )
    values[:] = 0
    materialize(made)
    assert [m.buffer.tolist() for m in made] == [[0, 1, 2, 3]] * 3


VALUES = {
    "tensor": lambda: torch.tensor([[1.5, 2], [3, 4]]),
    "tensor of integers": lambda: torch.tensor([1, 2, 3]),
    "tensor of one number": lambda: torch.tensor(2.5),
    "tensor of booleans": lambda: torch.tensor([True, False]),
    "tensor of complex numbers": lambda: torch.tensor([1 + 2j]),
    "tensor with a dtype": lambda: torch.tensor([1, 2], dtype=torch.float16),
    "tensor by keyword": lambda: torch.tensor(data=[1.0, 2.0]),
    "tensor with grad": lambda: torch.tensor([1.0], requires_grad=True).detach(),
    "tensor of nothing": lambda: torch.tensor([]),
    "tensor of a nested tensor": lambda: (
        torch.tensor([[torch.tensor(3.0).tolist()]])
        if torch.get_default_device().type == "cpu"
        else torch.tensor([[3.0]])
    ),
    "as_tensor": lambda: torch.as_tensor([1.0, 2.0]),
    "asarray": lambda: torch.asarray([1.0, 2.0]),
    "asarray of a number": lambda: torch.asarray(4.0, dtype=torch.float64),
    "scalar_tensor": lambda: torch.scalar_tensor(3.5),
    "new_tensor": lambda: torch.ones(2, dtype=torch.float64).new_tensor([1, 2]),
    "new_tensor by keyword": lambda: torch.ones(2).new_tensor(data=[1, 2]),
    "new_full": lambda: torch.ones(2).new_full((3,), 4.0),
    "a legacy constructor": lambda: torch.FloatTensor([1.0, 2.0]) * 2,
    "from Python values, then changed": lambda: torch.tensor([1.0, 2.0]).mul_(3),
    "range": lambda: torch.tensor(range(3)),
    "numpy scalar": lambda: torch.tensor(np.float32(1.5)),
    "list of numpy scalars": lambda: torch.tensor([np.float32(1.5), np.float32(2)]),
    "list of arrays": lambda: torch.tensor(np.array([np.arange(2.0)])),
    "from_numpy": lambda: torch.from_numpy(np.arange(3.0)) * 2,
    "from a buffer": lambda: torch.frombuffer(bytearray(b"abcd"), dtype=torch.uint8),
    "bytes of a list of tensors": lambda: torch.stack([torch.ones(2), torch.zeros(2)]),
}


@pytest.mark.parametrize("cache", [True, False])
@pytest.mark.parametrize("name", VALUES)
def test_python_values_are_kept(name, cache):
    real, made, _, _ = build_twice(lambda: register(VALUES[name]()), cache=cache)
    materialize(made)
    assert_bit_equal(made, real)


def test_python_values_in_a_list_count_as_they_were():
    values = [1.0, 2.0]
    with record():
        made = register(torch.tensor(values))
    values[0] = 9.0
    materialize(made)
    assert made.buffer.tolist() == [1, 2]


def test_item_assignment_of_python_values_is_kept():
    def build():
        mask = torch.zeros(3, 3)
        mask[1] = 2.0
        mask[:, 2] = torch.tensor([4.0, 5.0, 6.0])
        mask[torch.tensor([0, 2]), 0] = float("-inf")
        return register(mask)

    real, made, _, _ = build_twice(build)
    materialize(made)
    assert_bit_equal(made, real)


def test_a_large_real_tensor_counts_as_long_as_it_is_unchanged():
    values = torch.arange(5_000_000.0)
    with record():
        made = register(torch.empty(5_000_000).copy_(values))
    materialize(made)
    assert torch.equal(made.buffer, values)


def test_a_large_real_tensor_that_was_changed_since_is_refused():
    values = torch.arange(5_000_000.0)
    with record():
        made = register(torch.empty(5_000_000).copy_(values))
    values[17] = -1
    with pytest.raises(
        MaterializeError, match=r"was changed since.*run the cell again"
    ):
        materialize(made)


def test_a_large_real_tensor_whose_entries_were_exchanged_is_refused():
    values = torch.arange(5_000_000.0)
    with record():
        made = register(torch.empty(5_000_000).copy_(values))
    values.copy_(values.view(-1, 2, 2).flip(1).reshape(-1))  # whole words of 64 bits
    with pytest.raises(MaterializeError, match="was changed since"):
        materialize(made)


def test_a_large_real_tensor_of_a_checkpoint_loaded_in_the_cell_is_not_shared():
    values = torch.arange(5_000_000.0)
    with record():
        made = register(torch.empty(5_000_000).copy_(values))
    materialize(made)
    values.zero_()
    assert made.buffer[1].item() == 1
