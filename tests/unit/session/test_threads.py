"""Recordings in several threads at once; thresholds of Python's collector."""

import gc
import importlib
import sys
from threading import Event, Thread

import pytest
import torch

from meta_magic import record
from meta_magic.torch_private.replaced import DEVICE_OF_META_KERNELS, FUSED_DEVICES


def run_all(threads):
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def test_recordings_that_overlap_on_two_threads_leave_torch_as_it_was():
    def read():
        return [
            *(torch.load, torch.save, torch.from_numpy, torch.autocast.__init__),
            *(torch.autocast.__enter__, getattr(*DEVICE_OF_META_KERNELS)),
            *(getattr(*FUSED_DEVICES), torch.FloatTensor, torch.cuda.Event),
        ]

    before, events = read(), [Event() for _ in range(3)]

    def first():
        with record():
            events[0].set()
            events[1].wait()
        events[2].set()

    def second():
        events[0].wait()
        with record():
            events[1].set()
            events[2].wait()

    run_all([Thread(target=run) for run in (first, second)])
    assert read() == before


@pytest.fixture(autouse=True)
def restored_thresholds():
    before = gc.get_threshold()
    yield
    gc.set_threshold(*before)


@pytest.mark.parametrize("thresholds", [(0, 10, 10), (2**31 - 1, 10, 2**31 - 1)])
def test_a_collector_that_is_off_or_at_its_limit_stays_so(thresholds):
    gc.set_threshold(*thresholds)
    with record():
        assert gc.get_threshold()[0] == thresholds[0]
    assert gc.get_threshold() == thresholds


def test_recordings_of_threads_that_end_in_another_order_leave_what_was_before():
    gc.set_threshold(700, 11, 12)
    is_first_in, is_second_in, is_first_out = Event(), Event(), Event()

    def run_first():
        with record():
            is_first_in.set()
            is_second_in.wait()
        is_first_out.set()

    def run_second():
        is_first_in.wait()
        with record():
            is_second_in.set()
            is_first_out.wait()
            within.append(gc.get_threshold())

    within = []
    run_all([Thread(target=run_first), Thread(target=run_second)])
    assert within == [(2100, 11, 120)]
    assert gc.get_threshold() == (700, 11, 12)


@pytest.mark.parametrize(
    ("folder", "device"), [("lib/site-packages", "cpu"), ("own", "meta")]
)
def test_a_library_that_a_cell_imports_has_real_constants(
    tmp_path, monkeypatch, folder, device
):
    home, name = tmp_path / folder, f"solver_on_{device}"
    home.mkdir(parents=True)
    (home / f"{name}.py").write_text("import torch\nB = torch.tensor([0.25, 0.75])\n")
    monkeypatch.syspath_prepend(str(home))
    with record() as trace:
        x = torch.ones(2, requires_grad=True)
        y = (x * importlib.import_module(name).B).sum()
        y.backward()
        values = y.item(), x.grad.tolist()
    assert values == (1.0, [0.25, 0.75])
    assert sys.modules[name].B.device.type == device
    assert "aten.mul.Tensor" in {call.op for call in trace.ops}
