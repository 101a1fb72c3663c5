"""Operators that torch makes of others by device: beside the CPU's, without a mode."""

import pytest
import torch
from torch.nn import functional as F

from meta_magic import record
from tests.unit.eager import (
    assert_same,
    assert_same_operators,
    assert_same_tensor,
)
from tests.unit.replaying.replays import replay


def channels_last(*shape):
    return torch.randn(*shape).to(memory_format=torch.channels_last)


def lose(lengths, **options):
    probabilities = torch.randn(5, 2, 4).log_softmax(2).requires_grad_()
    targets = torch.tensor([[1, 2], [3, 1]])
    loss = F.ctc_loss(probabilities, targets, (5, 4), lengths, **options)
    loss.sum().backward()
    return torch.cat([loss.detach().view(-1), probabilities.grad.view(-1)])


def differentiate(function):
    x = torch.randn(2, 4, requires_grad=True)
    function(x).sum().backward()
    return x.grad


CALLS = {
    "gradient of mish": lambda: differentiate(F.mish),
    "gradient of silu": lambda: differentiate(F.silu),
    "singular values": lambda: torch.linalg.svdvals(torch.randn(4, 3, 3, 4)),
    "eigenvalues of a symmetric matrix": lambda: torch.linalg.eigvalsh(
        torch.randn(5, 5)
    ),
    "eigenvalues": lambda: torch.linalg.eigvals(torch.randn(5, 5)) * 1,
    "group norm": lambda: F.group_norm(channels_last(2, 8, 4, 4), 2),
    "group norm with weights": lambda: F.group_norm(
        channels_last(2, 8, 4, 4), 4, torch.randn(8), torch.randn(8)
    ),
    "group norm, channels first": lambda: F.group_norm(torch.randn(2, 8, 4, 4), 2),
    "one hot": lambda: F.one_hot(torch.randint(5, (3,))),
    "one hot of some classes": lambda: F.one_hot(torch.randint(5, (2, 3)), 7),
    "one hot of nothing": lambda: F.one_hot(torch.empty(0, dtype=torch.long), 7),
    "lengths": lambda: lose((2, 1)),
    "lengths, finite": lambda: lose((2, 1), zero_infinity=True),
    "lengths, sum": lambda: lose((2, 1), reduction="sum"),
}


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("name", CALLS)
def test_a_value_is_that_of_the_cpu_when_no_mode_looks_on(name, seed):
    torch.manual_seed(seed)
    real = CALLS[name]()
    torch.manual_seed(seed)
    with record(as_device="cpu") as trace:
        made = CALLS[name]()
    assert_same_tensor(replay(trace, made)[0], real)


@pytest.mark.parametrize("name", [n for n in CALLS if "values" not in n])
def test_operators_are_those_of_the_cpu(name):
    skipped = "lift", "detach", "empty.memory_format"  # C++ writes lengths into one
    assert_same_operators(CALLS[name], skipped=skipped)


POOLS = {
    "integers": (torch.long, lambda x: F.max_pool1d(x, 2)),
    "bytes": (torch.uint8, lambda x: F.max_pool1d(x, 2)),
    "truths": (torch.bool, lambda x: F.max_pool1d(x, 2)),
    "halves": (torch.half, lambda x: F.max_pool1d(x, 2)),
    "positions": (torch.long, lambda x: F.max_pool1d(x, 2, return_indices=True)),
    "each of some": (torch.long, torch.vmap(lambda x: F.max_pool1d(x, 2))),
}


@pytest.mark.parametrize("name", POOLS)
def test_a_dtype_is_pooled_where_the_cpu_pools_it(name):
    def describe():
        dtype, pool = POOLS[name]
        try:
            pool(torch.ones(3, 2, 6, dtype=dtype))
        except NotImplementedError as error:
            return str(error)
        return None

    assert_same(describe, as_device="cpu")


def differentiate_group_norm(gradient):
    norm = torch.nn.GroupNorm(2, 8)
    x = torch.randn(2, 16, 8).transpose(1, 2).reshape(2, 8, 4, 4).requires_grad_()
    made = norm(x)
    if gradient == "of rows":
        made = made.reshape(2, 8, 16).transpose(1, 2)
    total = (made * torch.randn(*made.shape)).sum()
    if gradient == "of a gradient":
        total = torch.autograd.grad(total, x, create_graph=True)[0].square().sum()
    total.backward()
    return [x.grad, norm.weight.grad]


@pytest.mark.parametrize("gradient", ["of channels last", "of rows", "of a gradient"])
def test_the_gradient_of_a_group_norm_is_that_of_the_cpu(gradient):
    torch.manual_seed(0)
    real = differentiate_group_norm(gradient)
    torch.manual_seed(0)
    with record(as_device="cpu") as trace:
        made = differentiate_group_norm(gradient)
    for there, here in zip(replay(trace, *made), real, strict=True):
        assert_same_tensor(there, here)


@pytest.mark.xfail(torch.__version__ >= "2.14", reason="torch trains it otherwise then")
def test_the_operators_of_a_group_norm_that_is_trained_are_those_of_the_cpu():
    def train():
        norm = torch.nn.GroupNorm(2, 8)
        norm(channels_last(2, 8, 4, 4).requires_grad_()).sum().backward()
        return norm

    assert_same_operators(train)
