"""``torch.save`` in a cell: a checkpoint that can be loaded, as the CPU writes it."""

import copy
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from meta_magic import MissingValueError, record
from meta_magic.errors import ValueLimitError
from meta_magic.trace.options import ValueLimits
from tests.unit.recording.intercept.data_of_cells import notes_of


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(5, 3)
        self.head = nn.Linear(3, 5, bias=False)
        self.head.weight = self.embed.weight
        self.register_buffer("mask", torch.ones(4, dtype=torch.bool), persistent=False)


def train(device):
    """Return a checkpoint as a training script writes it."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)).to(device)
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(2):
        model(torch.randn(5, 3).to(device)).pow(2).sum().backward()
        optimizer.step()
    return {
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "epoch": 3,
    }


SAVED = {
    "checkpoint": train,
    "module": lambda device: Tied().to(device),
    "state": lambda device: Tied().to(device).state_dict(),
    "view": lambda device: torch.arange(6.0).to(device).view(2, 3).t()[1:],
    "parameter": lambda device: nn.Parameter(torch.ones(2).to(device)),
    "conjugated": lambda device: torch.ones(2, dtype=torch.cfloat).to(device).conj(),
    "expanded": lambda device: torch.arange(3.0).to(device).expand(4, 3),
    "namespace": lambda device: SimpleNamespace(nested=[(torch.ones(2).to(device),)]),
    "with a graph": lambda device: torch.ones(2, requires_grad=True).to(device) * 2,
}


def flatten(value):
    """Return all tensors of a value, with what is around them."""
    if isinstance(value, nn.Module):
        return flatten([*value.named_parameters(), *value.named_buffers()])
    if isinstance(value, dict):
        return [item for pair in value.items() for item in flatten(pair)]
    if isinstance(value, (list, tuple)):
        return [item for part in value for item in flatten(part)]
    return flatten(vars(value)) if isinstance(value, SimpleNamespace) else [value]


def assert_same(made, real):
    made, real = flatten(made), flatten(real)
    assert len(made) == len(real)
    for one, other in zip(made, real, strict=True):
        assert type(one) is type(other)
        if isinstance(one, torch.Tensor):
            assert str(one.device) == "cpu"
            assert one.stride() == other.stride()
            assert one.requires_grad == other.requires_grad
            assert torch.equal(one, other)
        else:
            assert one == other


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("name", SAVED)
def test_what_is_saved_is_loaded_as_the_cpu_would_have_saved_it(name, device, tmp_path):
    torch.manual_seed(0)
    torch.save(SAVED[name]("cpu"), tmp_path / "real.pt")
    torch.manual_seed(0)
    with record() as trace:
        torch.save(SAVED[name](device), tmp_path / "made.pt")
    made, real = (
        torch.load(tmp_path / file, weights_only=False)
        for file in ("made.pt", "real.pt")
    )
    assert_same(made, real)
    assert "with the values that " in notes_of(trace)["save"].text


def test_a_checkpoint_is_a_file_that_other_programs_may_load(tmp_path):
    with record():
        torch.save(train("cuda"), tmp_path / "state.pt")
    loaded = torch.load(tmp_path / "state.pt", weights_only=True)
    assert loaded["epoch"] == 3


def test_more_than_the_limits_is_refused_and_no_file_written(tmp_path):
    with (
        pytest.raises(ValueLimitError, match="Save after the cell") as caught,
        record(limits=ValueLimits(nbytes=100, flops=10**9)),
    ):
        torch.save(nn.Linear(30, 20).cuda().state_dict(), tmp_path / "x.pt")
    assert "torch.save needs the values of 2 tensors on meta" in str(caught.value)
    assert not (tmp_path / "x.pt").exists()


def test_what_has_no_values_is_refused(tmp_path):
    outside = torch.empty(3, device="meta")
    with pytest.raises(MissingValueError, match=r"torch\.save needs"), record():
        torch.save(outside.cuda(), tmp_path / "x.pt")


@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy])
def test_a_copy_by_python_is_where_its_original_is(duplicate):
    with record():
        tensor = torch.ones(3).cuda()
        made = duplicate(tensor)
        norm = duplicate(nn.BatchNorm1d(2).to("cuda:1"))
        assert str(made.device) == "cuda:0"
        assert str(norm.running_mean.device) == "cuda:1"
        assert made.tolist() == [1, 1, 1]


def list_loaded(loaded):
    model = loaded["model"]
    return [loaded["x"], loaded["part"], loaded["list"][0], *model.parameters()]


@pytest.fixture
def checkpoint(tmp_path):
    """Return the path of a file with tensors that share memory, and a module."""
    torch.manual_seed(1)
    x = torch.randn(4)
    content = {"x": x, "part": x[1:], "list": [torch.ones(2) * 3], "model": Tied()}
    torch.save(content, tmp_path / "x.pt")
    return tmp_path / "x.pt"


def test_what_one_cell_loads_has_its_values_in_later_cells(checkpoint):
    wanted = list_loaded(torch.load(checkpoint, weights_only=False))
    with record():
        met = list_loaded(torch.load(checkpoint, weights_only=False))
    with record():
        assert [t.tolist() for t in met] == [t.tolist() for t in wanted]
        met[0].add_(1)
    wanted[0].add_(1)
    with record():
        assert [(t * 2).tolist() for t in met] == [(t * 2).tolist() for t in wanted]
    assert [t._version for t in met] == [t._version for t in wanted]


@pytest.mark.parametrize("number", range(4))
def test_what_is_written_between_cells_after_it_was_loaded_is_refused(
    checkpoint, number
):
    with record():
        met = list_loaded(torch.load(checkpoint, weights_only=False))
    with torch.no_grad():
        met[number].mul_(2)
    with record(), pytest.raises(MissingValueError, match="outside of any recording"):
        met[number].tolist()
