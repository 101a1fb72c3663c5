"""Functions in a child process, and what comes back of them."""

import os
import signal
import time

import pytest

from meta_magic.recording.as_device.oracle import child
from meta_magic.recording.as_device.oracle.child import (
    NO_ANSWER,
    NoAnswer,
    run_in_child,
)
from meta_magic.recording.as_device.oracle.stand_ins import Unaskable


def fail(error):
    raise error


def test_an_error_comes_back_with_its_type_and_its_text():
    error = run_in_child(lambda: fail(IndexError("of 3")))
    assert (type(error), str(error)) == (IndexError, "of 3")


def test_nothing_comes_back_of_a_function_that_runs():
    assert run_in_child(lambda: None) is None


def test_what_is_written_stays_in_the_child():
    written = []
    run_in_child(lambda: written.append(1))
    assert written == []


def test_a_child_that_crashes_gives_no_answer():
    assert run_in_child(lambda: os.kill(os.getpid(), signal.SIGSEGV)) is NO_ANSWER


def test_a_child_that_hangs_gives_no_answer(monkeypatch):
    monkeypatch.setattr(child, "SECONDS", 0.1)
    started = time.perf_counter()
    assert run_in_child(lambda: time.sleep(60)) is NO_ANSWER
    assert time.perf_counter() - started < 30


@pytest.mark.parametrize("kind", [NoAnswer, Unaskable])
def test_what_cannot_be_asked_is_no_answer(kind):
    assert run_in_child(lambda: fail(kind())) is NO_ANSWER


def test_a_long_text_comes_back_or_is_no_answer():
    error = run_in_child(lambda: fail(RuntimeError("x" * 10_000)))
    assert str(error) == "x" * 10_000


def test_no_child_is_left_behind(monkeypatch):
    children, fork = [], os.fork
    monkeypatch.setattr(os, "fork", lambda: children.append(fork()) or children[-1])
    run_in_child(lambda: os.kill(os.getpid(), signal.SIGSEGV))
    (child,) = children
    with pytest.raises(ChildProcessError):
        os.waitpid(child, os.WNOHANG)
