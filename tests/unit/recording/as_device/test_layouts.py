"""Strides that the CPU is asked for, and how often, and what that takes."""

import resource

import pytest
import torch

from meta_magic import record
from meta_magic.recording.as_device import cpu_kernels


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
