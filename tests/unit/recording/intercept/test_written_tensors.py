"""Tensors that an operator is given to write: layouts and versions as on the CPU."""

import pytest
import torch
from torch import nn

from meta_magic import record
from tests.unit.eager import assert_same_tensor
from tests.unit.replaying.replays import replay


def channels_last():
    return torch.randn(2, 3, 2, 2).to(memory_format=torch.channels_last)


def sort():
    made = torch.empty(2, 3, 2, 2), torch.empty(2, 3, 2, 2, dtype=torch.long)
    return torch.sort(channels_last(), out=made)[0]


WRITES = {
    "sorted": sort,
    "range": lambda: torch.arange(4, out=torch.empty(2, 2)),
    "range in columns": lambda: torch.arange(4.0, out=torch.empty(2, 2).t()),
    "range that grows": lambda: torch.arange(4.0, out=torch.empty(0)),
    "steps": lambda: torch.linspace(0, 1, 4, out=torch.empty(2, 2)),
    "images": lambda: torch.cat([channels_last()] * 2, out=torch.empty(0)),
    "matrix": lambda: torch.mm(
        torch.randn(2, 3), torch.randn(3, 4), out=torch.empty(4, 2).t()
    ),
    "sum": lambda: torch.sum(torch.randn(2, 3), 0, out=torch.empty(3)),
}


@pytest.mark.parametrize("name", WRITES)
def test_what_is_written_has_the_layout_and_the_values_of_the_cpu(name):
    torch.manual_seed(0)
    real = WRITES[name]()
    for _ in range(2):  # the second one may be served
        torch.manual_seed(0)
        with record(as_device="cpu") as trace:
            made = WRITES[name]()
        assert (made.shape, made.stride()) == (real.shape, real.stride())
        assert_same_tensor(replay(trace, made)[0], real)


INITIALIZED = {
    "orthogonal": lambda: nn.init.orthogonal_(torch.ones(3, 4)),
    "sparse": lambda: nn.init.sparse_(torch.ones(3, 5), 0.3),
    "dirac": lambda: nn.init.dirac_(torch.ones(6, 2, 3), groups=3),
    "truncated": lambda: nn.init.trunc_normal_(torch.ones(300)),
    "truncated far outside": lambda: nn.init.trunc_normal_(torch.ones(3), std=0.02),
    "truncated to little": lambda: nn.init.trunc_normal_(torch.ones(300), 0, 1, 1, 2),
    "nearly uniform": lambda: nn.init.trunc_normal_(torch.ones(3), 0, 50, -1, 1),
}


@pytest.mark.parametrize("name", INITIALIZED)
def test_an_initializer_counts_its_writes_as_on_the_cpu(name):
    torch.manual_seed(0)
    real = INITIALIZED[name]()
    for _ in range(2):  # the second one may be served
        with record():
            made = INITIALIZED[name]()
        assert made._version == real._version
