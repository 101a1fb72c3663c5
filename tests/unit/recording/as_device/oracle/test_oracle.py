"""How the CPU is asked, and which of its errors are about values."""

import os
import signal
import time

import pytest
import torch
from torch import nn

from meta_magic import children, record
from meta_magic.recording.as_device.oracle import oracle
from meta_magic.recording.as_device.oracle.cpu_refusals import name_types
from meta_magic.recording.as_device.oracle.proxy_tensors import ACCEPTED
from tests.unit.eager import assert_refused_alike


def multiply_two_dtypes():
    large = 2**20
    layer = nn.Linear(large, large, bias=False)
    return layer(torch.empty(1, large, dtype=torch.float64))


@pytest.mark.parametrize(
    "error", [PermissionError, BlockingIOError, MemoryError, RuntimeError]
)
def test_where_children_are_forbidden_a_large_call_is_as_on_meta(error, monkeypatch):
    def refuse():
        raise error("forbidden")

    monkeypatch.setattr(os, "fork", refuse)
    with record(as_device="cpu", cache=False):
        assert multiply_two_dtypes().shape == (1, 2**20)


@pytest.mark.parametrize(
    "end", [lambda _: os.kill(os.getpid(), signal.SIGSEGV), lambda _: time.sleep(60)]
)
def test_a_refusal_of_what_crashes_or_hangs_on_the_cpu_stands(end, monkeypatch):
    monkeypatch.setattr(children, "PATIENCE", 0.1)
    given = (torch.empty(2, 3, device="meta"),)
    answer = oracle.Oracle().ask(end, given, {}, is_unsafe=True)
    assert answer is oracle.Verdict.UNKNOWN


def test_asking_stops_after_its_share_of_the_time(monkeypatch):
    monkeypatch.setattr(oracle, "MIN_SECONDS", -1.0)
    monkeypatch.setattr(oracle, "MAX_SHARE", 0.0)
    with record(as_device="cpu", cache=False):
        assert nn.Linear(3, 4)(torch.ones(2, 3).double()).shape == (2, 4)


def test_a_call_left_unasked_is_asked_by_the_next_cell(monkeypatch):
    with monkeypatch.context() as patch, record(as_device="cpu") as trace:
        patch.setattr(oracle, "MIN_SECONDS", -1.0)
        patch.setattr(oracle, "MAX_SHARE", 0.0)
        nn.Linear(13, 4)(torch.ones(2, 13).double())
    assert [note.kind for note in trace.notes] == ["unasked"]
    with pytest.raises(RuntimeError, match="same dtype"), record(as_device="cpu"):
        nn.Linear(13, 4)(torch.ones(2, 13).double())
    with record(as_device="cpu") as trace:
        torch.ones(2, 13).double()
    assert trace.notes == ()


def compute(_):
    end = time.process_time() + 0.2
    while time.process_time() < end:
        pass


@pytest.mark.parametrize(
    ("func", "is_unsafe", "wanted"),
    [
        (lambda _: time.sleep(0.2), False, oracle.Verdict.ACCEPTED),
        (compute, False, oracle.Verdict.UNASKED),
        (compute, True, oracle.Verdict.UNASKED),
    ],
    ids=["delayed", "computing", "computing in a child"],
)
def test_only_processor_time_counts(func, is_unsafe, wanted, monkeypatch):
    monkeypatch.setattr(oracle, "MIN_SECONDS", 0.1)
    monkeypatch.setattr(oracle, "MAX_SHARE", 0.0)
    monkeypatch.setattr(oracle, "MAX_SHARE_UNSAFE", 0.0)
    given = (torch.empty(2, 3, device="meta"),)
    asked = oracle.Oracle()
    asked.ask(func, given, {}, is_unsafe=is_unsafe)
    assert asked.ask(func, given, {}, is_unsafe=is_unsafe) is wanted


def overwrite(dtype=torch.float32):
    """Write what a backward needs."""
    weight = torch.ones(3, dtype=dtype, requires_grad=True)
    saved = weight.exp()
    saved.add_(1)
    return saved.sum()


def convolve():
    weight = torch.ones(1, 1, 2, dtype=torch.complex64)
    return torch.nn.functional.conv1d(torch.ones(1, 1, 3), weight)


TYPED = {
    "backward": lambda: overwrite().backward(),
    "grad": lambda: torch.autograd.grad(overwrite(), torch.ones(1)),
    "without a class": lambda: overwrite(torch.bfloat16).backward(),
    "input and weight": convolve,
}


@pytest.mark.parametrize("name", TYPED)
def test_types_are_named_as_on_the_cpu(name):
    assert_refused_alike(TYPED[name], as_device="cpu")


@pytest.mark.parametrize(
    ("device", "wanted"),
    [
        ("meta", "a MetaFloatType and a MetaBFloat16Type"),
        ("cpu", "a torch.FloatTensor and a CPUBFloat16Type"),
        ("cuda", "a torch.cuda.FloatTensor and a CUDABFloat16Type"),
    ],
)
def test_types_are_those_of_the_device(device, wanted):
    error = RuntimeError("a MetaFloatType and a MetaBFloat16Type")
    name_types(error, device)
    assert str(error) == wanted


def test_a_large_call_at_other_sizes_is_known_by_the_smaller_one():
    with record():
        torch.ones(1000, 3000) @ torch.ones(3000, 2000)
    known = len(ACCEPTED)
    with record():
        torch.ones(1100, 3300) @ torch.ones(3300, 2200)
        assert len(ACCEPTED) == known
        with pytest.raises(RuntimeError, match="same dtype"):
            torch.ones(1200, 3600) @ torch.ones(3600, 2400).double()
        with pytest.raises(RuntimeError, match="cannot be multiplied"):
            torch.ones(1200, 3600) @ torch.ones(3000, 2400)


@pytest.mark.parametrize("dim", [1, -1])
def test_of_a_smaller_call_numbers_and_dtypes_are_known_too(dim):
    with record():
        torch.ones(700, 900).softmax(1)
        torch.ones(800, 1000).softmax(dim)
        with pytest.raises(IndexError, match="Dimension out of range"):
            torch.ones(800, 1000).softmax(2)
        with pytest.raises(RuntimeError, match="not implemented for 'Long'"):
            torch.ones(800, 1000, dtype=torch.int64).softmax(dim)
