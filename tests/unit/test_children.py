"""Functions in a child process, and what comes back of them."""

import ctypes
import os
import resource
import runpy
import signal
import sys
import threading
import time
from contextlib import suppress
from functools import partial

import pytest
import torch

from meta_magic import children
from meta_magic.children import NO_ANSWER, NoAnswer, ask_children, run_in_child
from meta_magic.recording.as_device.oracle.proxy_tensors import Unaskable
from meta_magic.torch_private import snapshot
from meta_magic.torch_private.snapshot import fork


def fail(error):
    raise error


def test_an_error_comes_back_with_its_type_and_its_text():
    error = run_in_child(lambda: fail(IndexError("of 3")))
    assert (type(error), str(error)) == (IndexError, "of 3")


def test_children_run_at_once_and_answer_in_order():
    first, second = os.pipe(), os.pipe()

    def wait():
        os.write(second[1], b"a")
        return os.read(first[0], 1)  # until the other has begun

    def go_on():
        os.write(first[1], b"b")
        return os.read(second[0], 1)

    try:
        assert ask_children([wait, go_on], 9, 9) == [b"b", b"a"]
    finally:
        for end in (*first, *second):
            os.close(end)


def test_a_child_that_crashes_takes_no_other_with_it():
    def crash():
        os.kill(os.getpid(), signal.SIGSEGV)

    answers = ask_children([lambda: 1, crash, lambda: 3], 9, 9)
    assert answers == [1, NO_ANSWER, 3]


def test_a_child_that_hangs_gives_no_answer(monkeypatch):
    monkeypatch.setattr(children, "PATIENCE", 0.1)
    started = time.perf_counter()
    assert run_in_child(lambda: time.sleep(60)) is NO_ANSWER
    assert time.perf_counter() - started < 30


def compute_for_ever():
    while True:
        pass


def test_a_child_that_computes_too_long_is_ended_before_it_is_late(monkeypatch):
    monkeypatch.setattr(children, "SECONDS", 1)
    monkeypatch.setattr(children, "PATIENCE", 600)
    assert run_in_child(compute_for_ever) is NO_ANSWER


def test_a_child_that_computes_is_waited_for(monkeypatch):
    monkeypatch.setattr(children, "PATIENCE", 0.05)

    def compute():
        end = time.process_time() + 0.3
        while time.process_time() < end:
            pass

    assert run_in_child(compute) is None


@pytest.mark.parametrize("kind", [NoAnswer, Unaskable])
def test_what_cannot_be_asked_is_no_answer(kind):
    assert run_in_child(lambda: fail(kind())) is NO_ANSWER


def test_a_crash_leaves_no_core():
    def check():
        if resource.getrlimit(resource.RLIMIT_CORE) != (1, 1):
            raise ValueError

    assert run_in_child(check) is None


def wait_for_any(*_):
    with suppress(ChildProcessError):
        os.waitpid(-1, os.WNOHANG)


@pytest.mark.parametrize("handler", [signal.SIG_IGN, wait_for_any])
def test_an_answer_comes_where_others_wait_for_children(handler):
    before = signal.signal(signal.SIGCHLD, handler)
    try:
        error = run_in_child(lambda: fail(IndexError("of 3")))
    finally:
        signal.signal(signal.SIGCHLD, before)
    assert str(error) == "of 3"


def test_where_processes_have_no_limits_it_is_imported_all_the_same(monkeypatch):
    monkeypatch.setitem(sys.modules, "resource", None)  # as on Windows
    assert "resource" not in runpy.run_path(children.__file__)


def test_a_child_can_compute_while_threads_do():
    is_over, has_begun = threading.Event(), threading.Event()
    matrix = torch.ones(300, 300)

    def compute():
        while not is_over.is_set():
            matrix @ matrix
            has_begun.set()  # a child has no use of what is half set up for the first

    def check():
        if (matrix @ matrix)[0, 0] != 300:
            raise ValueError

    before = torch.get_num_threads()
    torch.set_num_threads(2)
    thread = threading.Thread(target=compute)
    thread.start()
    has_begun.wait()
    try:
        answers = [run_in_child(check) for _ in range(20)]
    finally:
        is_over.set()
        thread.join()
        torch.set_num_threads(before)
    assert answers == 20 * [None]


def test_no_child_is_left_behind(monkeypatch):
    children, fork = [], os.fork
    monkeypatch.setattr(os, "fork", lambda: children.append(fork()) or children[-1])
    run_in_child(lambda: os.kill(os.getpid(), signal.SIGSEGV))
    (child,) = children
    with pytest.raises(ChildProcessError):
        os.waitpid(child, os.WNOHANG)


def test_a_generator_answers_what_it_is_sent_until_it_ends():
    def add():
        total = 0
        while total < 5:
            total += (yield total).read()

    with children.Child(add, 1) as child:
        answers = [child.read(1)]
        for number in (2, 1, 4):
            child.send(number)
            answers.append(child.read(1))
        child.send(1)  # nobody reads it
    assert answers == [0, 2, 3, NO_ANSWER]


def fork_and_differentiate(fork_process):
    """Return whether a handler of the C library ran, and how the child ended."""
    called = []
    handler = ctypes.CFUNCTYPE(None)(lambda: called.append("handler"))
    ctypes.CDLL(None).__register_atfork(handler, None, None, None)
    number = fork_process()
    if number == 0:
        x = torch.ones(3, device="meta", requires_grad=True)
        (x * 2).sum().backward()
        os._exit(7 if x.grad.is_meta else 1)
    return bool(called), os.waitstatus_to_exitcode(os.waitpid(number, 0)[1])


def test_beside_a_gpu_a_child_is_forked_without_handlers_of_the_c_library(monkeypatch):
    # One of them is torch's, which refuses backward passes in the child.
    monkeypatch.setattr(snapshot, "count_gpus", lambda: 1)
    handled, left_out = (partial(fork_and_differentiate, f) for f in (os.fork, fork))
    assert ask_children([handled, left_out], 60, 60) == [(True, 7), (False, 7)]
