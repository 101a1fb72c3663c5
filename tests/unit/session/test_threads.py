"""Recordings on several threads at once."""

import threading

import torch
from torch import nn
from torch.utils import _python_dispatch as python_dispatch

from meta_magic import record
from meta_magic.torch_private.replaced import DEVICE_OF_META_KERNELS, FUSED_DEVICES


def test_recordings_that_overlap_on_two_threads_leave_torch_as_it_was():
    def read():
        return [
            *(torch.load, torch.save, torch.from_numpy, torch.autocast.__init__),
            *(torch.autocast.__enter__, getattr(*DEVICE_OF_META_KERNELS)),
            *(getattr(*FUSED_DEVICES), torch.FloatTensor, torch.cuda.Event),
        ]

    before, events = read(), [threading.Event() for _ in range(3)]

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

    threads = [threading.Thread(target=run) for run in (first, second)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert read() == before


def test_recordings_of_three_threads_leave_nothing_behind_and_are_alike():
    def attend(traces):
        for _ in range(5):
            with record() as trace:
                x = torch.ones(1, 2, 3, 4)
                nn.functional.scaled_dot_product_attention(x, x, x)
            traces.append(trace)

    before = torch.load, threading.getprofile(), nn.Parameter.__new__
    traces = []
    threads = [threading.Thread(target=attend, args=(traces,)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (torch.load, threading.getprofile(), nn.Parameter.__new__) == before
    assert not python_dispatch._is_in_torch_dispatch_mode
    assert len(traces) == 15
    assert [trace.program.words == traces[0].program.words for trace in traces] == (
        [True] * 15
    )
