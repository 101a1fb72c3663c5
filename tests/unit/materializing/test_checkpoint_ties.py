"""Ties, shared submodules and views that a checkpoint fills."""

import pytest
import torch
from torch import nn

from meta_magic import materialize, record
from tests.unit.eager import build_twice


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(5, 3)
        self.head = nn.Linear(3, 5, bias=False)
        self.head.weight = self.embed.weight


@pytest.mark.parametrize(
    "names",
    [["embed.weight"], ["head.weight"], ["embed.weight", "head.weight"]],
)
def test_a_tie_is_kept_whichever_of_its_names_the_checkpoint_has(names):
    _, made, _, _ = build_twice(Tied)
    value = torch.rand(5, 3)
    report = materialize(made, init=dict.fromkeys(names, value))
    assert made.head.weight is made.embed.weight
    assert torch.equal(made.head.weight, value)
    assert report.names("checkpoint") == ("embed.weight", "head.weight")


def test_a_shared_submodule_may_be_named_at_both_places():
    def build():
        linear = nn.Linear(2, 2)
        return nn.Sequential(linear, linear)

    real, made, _, _ = build_twice(build)
    state = {name: tensor + 1 for name, tensor in real.state_dict().items()}
    materialize(made, init=state)
    assert torch.equal(made[1].weight, state["1.weight"])


def test_views_of_one_storage_are_filled_each_from_its_name():
    class Shared(nn.Module):
        def __init__(self):
            super().__init__()
            flat = torch.zeros(6)
            self.low = nn.Parameter(flat[:3])
            self.high = nn.Parameter(flat[3:])

    with record():
        made = Shared()
    state = {"low": torch.arange(3.0), "high": torch.arange(3.0, 6.0)}
    materialize(made, init=state)
    assert (made.low.tolist(), made.high.tolist()) == ([0, 1, 2], [3, 4, 5])
    assert made.low.untyped_storage().data_ptr() == (
        made.high.untyped_storage().data_ptr()
    )


def test_a_view_that_the_checkpoint_lacks_is_not_left_uninitialized_unsaid():
    class Shared(nn.Module):
        def __init__(self):
            super().__init__()
            flat = torch.full((6,), 7.0)
            self.low = nn.Parameter(flat[:3])
            self.high = nn.Parameter(flat[3:])

    with record():
        made = Shared()
    report = materialize(made, init={"low": torch.arange(3.0)})
    filled_by = {tensor.name: tensor.filled_by for tensor in report.tensors}
    assert filled_by["high"] == "uninitialized" or made.high.tolist() == [7, 7, 7]
    assert made.low.tolist() == [0, 1, 2]


def test_an_expanded_buffer_is_filled():
    def build():
        module = nn.Module()
        module.register_buffer("mask", torch.zeros(1, 3).expand(2, 3))
        return module

    with record():
        made = build()
    materialize(made, init={"mask": torch.tensor([[1.0, 2, 3], [1, 2, 3]])})
    assert made.mask.tolist() == [[1, 2, 3], [1, 2, 3]]
