"""Serving layers begins and ends with a recording, and is of its thread alone."""

import contextlib
import signal
import sys
import threading
import warnings
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from meta_magic.recording.intercept import leaf_modules
from meta_magic.recording.intercept.leaf_modules import LeafModules, leaves_by_thread
from meta_magic.session.record import record
from meta_magic.torch_private.module_internals import is_as_made, is_torch_calling
from tests.unit.recording.intercept.layer_programs import (
    LAYERS,
    Block,
    Calling,
    call_inside,
    in_thread,
    run,
)

LEAVES = leaf_modules.__file__


def assert_left():
    assert not any("__call__" in vars(kind) for kind in LAYERS)
    assert not leaves_by_thread


def rows_of(trace):
    program = trace.program
    return program.words, program.module_rows, program.module_values


def call_layers():
    block = Block(nn.Linear(4, 4), nn.LayerNorm(4), nn.GELU())
    call_inside(block, torch.ones(2, 4))


def test_a_recording_leaves_the_classes_of_layers_as_they_were():
    for cache in (True, False):
        with record(cache=cache):
            assert all("__call__" in vars(kind) for kind in LAYERS) is cache
            call_layers()
        assert_left()


@pytest.mark.parametrize("kind", [ValueError, KeyboardInterrupt, SystemExit])
def test_a_recording_that_fails_leaves_the_classes_as_they_were(kind):
    layer = nn.Linear(4, 4)

    def fail(x):
        layer(x)
        raise kind

    for _ in range(3):
        with pytest.raises(kind), record() as trace:
            call_inside(fail, torch.ones(2, 4))
        assert_left()
        assert len(trace.program.module_rows) == 2 * 7 * 4


def test_what_a_cell_replaces_stays_replaced(monkeypatch):
    def call(self, x):
        return x

    with record():
        monkeypatch.setattr(nn.ReLU, "__call__", call)
    assert vars(nn.ReLU)["__call__"] is call
    with record():
        assert vars(nn.ReLU)["__call__"] is call
    assert vars(nn.ReLU)["__call__"] is call
    monkeypatch.undo()
    vars(nn.ReLU).get("__call__") and delattr(nn.ReLU, "__call__")
    assert_left()


def test_what_a_cell_replaces_and_deletes_is_gone():
    for _ in range(2):
        with record():
            nn.ReLU.__call__ = lambda self, x: x
            del nn.ReLU.__call__
            call_layers()
            with record():
                call_layers()
        assert_left()


def test_a_recording_within_another_is_like_any():
    block = Block(nn.Linear(4, 4), nn.Dropout()).to("meta")

    def program():
        x = torch.ones(2, 4)
        call_inside(block, x)
        with record(cache=False) as off:
            call_inside(block, x)
        with record() as on:
            call_inside(block, x)
            call_inside(block, x)
        call_inside(block, x)
        return [rows_of(trace) for trace in (off, on)]

    found = []
    for cache in (False, True, True, True):
        trace, returned, _ = run(program, cache=cache)
        found.append((rows_of(trace), returned))
    assert found == found[:1] * 4
    assert_left()


def test_those_that_end_in_another_order_leave_nothing():
    functions = SimpleNamespace(sees_all=lambda: True)
    first, second = (LeafModules(functions, None, None) for _ in range(2))
    for leaves in (first, second):
        leaves.__enter__()
    in_thread(first.__exit__)
    assert leaves_by_thread == {threading.get_ident(): [second]}
    second.__exit__()
    assert_left()


def test_recordings_of_two_threads_are_like_any():
    block = Block(nn.Linear(4, 4), nn.GELU()).to("meta")
    barrier, found = threading.Barrier(2, timeout=60), []

    def program():
        barrier.wait()
        for _ in range(20):
            call_inside(block, torch.ones(2, 4))
        barrier.wait()

    def record_rows(cache):
        found.append(rows_of(run(program, cache=cache)[0]))

    for cache in (False, True, True):
        threads = [threading.Thread(target=record_rows, args=[cache]) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert found == found[:1] * 6
    assert_left()


def test_a_thread_that_does_not_record_calls_layers_for_real():
    layer, met = nn.Linear(4, 4), []
    with record():
        call_layers()
        in_thread(lambda: met.append(call_inside(layer, torch.ones(2, 4)).device.type))
    assert met == ["cpu"]


def test_too_deep_a_recursion_leaves_the_rows_whole():
    relu = nn.ReLU()

    def recurse(x):
        relu(x)
        return Calling(recurse)(x)

    def program():
        with contextlib.suppress(RecursionError):
            call_inside(recurse, torch.ones(2))
        relu(torch.ones(2))

    for _ in range(2):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            trace, *_ = run(program, cache=True)
        assert trace.ops[-1].module_call == len(trace.program.module_rows) // 28 - 1


@pytest.mark.filterwarnings("ignore:Warning only once")
def test_a_kernel_that_the_cell_changes_is_recorded():
    block = Block(nn.ReLU()).to("meta")
    with record() as trace:
        for _ in range(2):
            call_inside(block, torch.ones(2, 2))
        with torch.library._scoped_library("aten", "IMPL") as library:
            library.impl("relu", lambda x: x.neg(), "CompositeExplicitAutograd")
            call_inside(block, torch.ones(2, 2))
    assert [c.op for c in trace.ops][-1] in {"aten.neg.default", "aten.relu.default"}


def put(patch, owner, name):
    patch.setattr(owner, name, lambda self, *_: self, raising=False)


def test_a_class_that_others_changed_is_known(monkeypatch):
    assert all(map(is_as_made, LAYERS))
    for name in ("forward", "_conv_forward", "weight", "_call_impl", "__getattr__"):
        with monkeypatch.context() as patch:
            put(patch, nn.Conv2d, name)
            assert not is_as_made(nn.Conv2d)


def test_a_class_of_all_modules_that_others_changed_is_known(monkeypatch):
    assert is_torch_calling()
    for name in ("__call__", "_call_impl", "_wrapped_call_impl", "bias", "__getattr__"):
        with monkeypatch.context() as patch:
            put(patch, nn.Module, name)
            is_known = not is_torch_calling()
        assert is_known


def test_an_interrupt_leaves_the_rows_whole():
    block = Block(nn.Linear(4, 4), nn.GELU()).to("meta")
    for at in range(1, 60, 2):
        n_met = 0

        def interrupt(frame, event, _, at=at):
            nonlocal n_met
            if any(f.f_code.co_filename == LEAVES for f in frames_of(frame)):
                n_met += 1
                if n_met == at:
                    signal.raise_signal(signal.SIGINT)

        with pytest.raises(KeyboardInterrupt), record() as trace:
            call_inside(block, torch.ones(2, 4))
            sys.setprofile(interrupt)
            try:
                for _ in range(100):
                    call_inside(block, torch.ones(2, 4))
            finally:
                sys.setprofile(None)
        assert_left()
        calls = trace.module_calls
        assert all(call.first_op <= call.end_op for call in calls)
        for index, op in enumerate(trace.ops):
            if op.module_call is not None:
                call = calls[op.module_call]
                assert call.first_op <= index < call.end_op
        for call in calls[:-1]:
            assert call.outputs or call.parent in {None, *still_open(calls)}
        assert torch.ones(2).device.type == "cpu"
        assert torch._C._is_torch_function_enabled()


def still_open(calls):
    return {call.index for call in calls if not call.outputs}


def frames_of(frame):
    while frame is not None:
        yield frame
        frame = frame.f_back
