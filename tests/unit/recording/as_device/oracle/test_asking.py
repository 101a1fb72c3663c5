"""What is not asked, for want of time, memory or processes, and what becomes of it."""

import os
import resource
import signal
import time
from pathlib import Path

import pytest
import torch
from torch import nn

from meta_magic import record
from meta_magic.recording.as_device.oracle import child, oracle


def multiply_two_dtypes():
    large = 2**20
    layer = nn.Linear(large, large, bias=False)
    return layer(torch.empty(1, large, dtype=torch.float64))


def test_where_memory_must_be_reserved_a_large_call_is_as_on_meta(monkeypatch):
    monkeypatch.setattr(oracle, "UNRESERVED", None)  # as on macOS
    with record(as_device="cpu", cache=False):
        multiply_two_dtypes()


@pytest.mark.parametrize(
    "error", [PermissionError, BlockingIOError, MemoryError, RuntimeError]
)
def test_where_children_are_forbidden_a_large_call_is_as_on_meta(error, monkeypatch):
    def refuse():
        raise error("forbidden")

    monkeypatch.setattr(os, "fork", refuse)
    with record(as_device="cpu", cache=False):
        multiply_two_dtypes()


def test_where_memory_is_short_a_large_call_is_as_on_meta():
    limits = resource.getrlimit(resource.RLIMIT_AS)
    n_pages = int(Path("/proc/self/statm").read_text().split()[0])
    taken = n_pages * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (taken + 2**28, limits[1]))
    try:
        with record(as_device="cpu", cache=False):
            multiply_two_dtypes()
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limits)


@pytest.mark.parametrize(
    "end", [lambda _: os.kill(os.getpid(), signal.SIGSEGV), lambda _: time.sleep(60)]
)
def test_a_refusal_of_what_crashes_or_hangs_on_the_cpu_stands(end, monkeypatch):
    monkeypatch.setattr(child, "PATIENCE", 0.1)
    given = (torch.empty(2, 3, device="meta"),)
    answer = oracle.Oracle().ask(end, given, {}, is_unsafe=True)
    assert answer is oracle.Verdict.UNKNOWN


def test_asking_stops_after_its_share_of_the_time(monkeypatch):
    monkeypatch.setattr(oracle, "MIN_SECONDS", -1.0)
    monkeypatch.setattr(oracle, "MAX_SHARE", 0.0)
    with record(as_device="cpu", cache=False):
        nn.Linear(3, 4)(torch.ones(2, 3).double())


def test_what_was_not_asked_is_said_of_later_recordings_too(monkeypatch):
    def call():
        with record(as_device="cpu") as trace:
            torch.ones(7, 11).cumsum(1).cumsum(0)
        return [note.text[:12] for note in trace.notes if note.kind == "unasked"]

    with monkeypatch.context() as context:
        context.setattr(oracle, "MIN_SECONDS", -1.0)
        context.setattr(oracle, "MAX_SHARE", -1.0)
        assert call() == ["2 calls that"]
    assert call() == ["2 calls that"]


def test_what_meta_refuses_is_asked_when_the_share_of_others_is_spent(monkeypatch):
    monkeypatch.setattr(oracle, "MIN_SECONDS", -1.0)
    monkeypatch.setattr(oracle, "MAX_SHARE", 0.0)
    monkeypatch.setattr(oracle, "MAX_SHARE_UNSAFE", 1.0)  # all of a block so short
    with record(as_device="cpu", cache=False):
        grown = torch.ones(1).addbmm_(torch.ones(3, 5, 2), torch.ones(3, 2, 4))
    assert grown.shape == (5, 4)
