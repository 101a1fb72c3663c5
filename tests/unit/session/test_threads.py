"""Recordings on several threads at once."""

import threading

import torch

from meta_magic import record
from meta_magic.torch_private.replaced import DEVICE_OF_META_KERNELS, FUSED_DEVICES


def test_recordings_that_overlap_on_two_threads_leave_torch_as_it_was():
    def read():
        return [
            *(torch.load, torch.save, torch.from_numpy, torch.autocast.__init__),
            *(torch.autocast.__enter__, getattr(*DEVICE_OF_META_KERNELS)),
            getattr(*FUSED_DEVICES),
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
