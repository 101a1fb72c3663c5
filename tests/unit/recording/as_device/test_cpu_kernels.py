"""Operators that torch has no kernel for on meta, beside the CPU's own."""

import math
import resource

import pytest
import torch
from torch.nn.functional import binary_cross_entropy, huber_loss, l1_loss, mse_loss

from meta_magic import record, verify
from meta_magic.recording.as_device import cpu_kernels


def describe(tensor):
    return tensor.shape, tensor.dtype, tensor.stride()


FAKE_QUANTIZED = {
    "tensor": lambda a: torch.fake_quantize_per_tensor_affine(a, 0.1, 0, -128, 127),
    "scale of a tensor": lambda a: torch.fake_quantize_per_tensor_affine(
        a, torch.tensor(0.1), torch.tensor(0, dtype=torch.int32), -128, 127
    ),
    "channels": lambda a: torch.fake_quantize_per_channel_affine(
        a, torch.full((4,), 0.1), torch.zeros(4, dtype=torch.int32), 0, -128, 127
    ),
    "learnable": lambda a: torch._fake_quantize_learnable_per_tensor_affine(
        *(a, torch.tensor([0.1]), torch.zeros(1), -128, 127, 1.0)
    ),
}
EMPTY = {
    "mse": mse_loss,
    "l1": l1_loss,
    "huber": huber_loss,
    "cross entropy": binary_cross_entropy,
}
ASKED = {
    name: lambda a, quantize=quantize: quantize(a.t())
    for name, quantize in FAKE_QUANTIZED.items()
} | {
    name: lambda a, loss=loss: loss(a[:0], torch.empty(0, 4))
    for name, loss in EMPTY.items()
}


REFUSED = {
    "new": lambda a: a.nan_to_num(),
    "in place": lambda a: a.nan_to_num_(),
    "out": lambda a: torch.nan_to_num(a, out=torch.empty_like(a)),
    "grown": lambda _: torch.ones(1).addbmm_(torch.ones(3, 5, 2), torch.ones(3, 2, 4)),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_meta_refuses_and_the_cpu_runs_is_asked_of_the_cpu(name):
    def call():
        return REFUSED[name](torch.full((2, 3), math.inf, dtype=torch.complex64).t())

    with record(as_device="cpu"):
        met = call()
        assert met.tolist() == call().tolist()
    assert describe(met) == describe(call())


@pytest.mark.parametrize("name", ASKED)
def test_what_has_no_kernel_on_meta_is_asked_of_the_cpu(name):
    def differentiate():
        a = torch.linspace(0.1, 0.9, 12).view(3, 4).requires_grad_()
        returned = ASKED[name](a)
        returned.sum().backward()
        return returned, a.grad

    returned, gradient = differentiate()
    wanted = [describe(returned), describe(gradient)]
    with record(as_device="cpu") as trace:
        met = differentiate()
        assert met[1].tolist() == gradient.tolist()
    assert [describe(tensor) for tensor in met] == wanted
    assert verify(trace, "cpu").empty


def test_what_is_too_large_to_ask_of_the_cpu_is_refused():
    with record(), pytest.raises(NotImplementedError, match="fake_quantize"):
        torch.fake_quantize_per_tensor_affine(torch.empty(2**30), 0.1, 0, 0, 9)


# Strides that the CPU is asked for, and how often, and what that takes


@pytest.fixture
def asked(monkeypatch):
    """The operators of which the CPU was asked for strides."""
    found, ask = [], cpu_kernels.ask_cpu
    monkeypatch.setattr(cpu_kernels, "known_alike", set())
    monkeypatch.setattr(
        cpu_kernels,
        "ask_cpu",
        lambda func, *given: found.append(func) or ask(func, *given),
    )
    return found


def test_the_cpu_is_asked_once_for_calls_that_differ_in_their_place_in_memory(asked):
    with record(as_device="cpu", cache=False):
        columns = torch.zeros(4, 5, 6)
        for i in range(5):
            columns[:, i] + 1
    assert [func.name() for func in asked] == ["aten::add.Tensor"]


@pytest.mark.parametrize("other", [lambda t: t.t(), lambda t: t.double(), lambda t: -t])
def test_the_cpu_is_asked_of_calls_that_differ_otherwise(asked, other):
    with record(as_device="cpu", cache=False):
        columns = torch.zeros(4, 4, 4)[:, 1]
        columns + 1
        n_asked = len(asked)
        other(torch.zeros(4, 4, 4)[:, 1]) + columns
    assert len(asked) > n_asked


def test_few_elements_of_a_large_storage_take_little_memory():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with record(as_device="cpu", cache=False):
        _ = torch.zeros(2**10, 2**15)[:, 0] + 1
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 2**15
