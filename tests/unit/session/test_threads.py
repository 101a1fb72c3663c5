"""Recordings on several threads at once."""

import threading

import torch

from meta_magic import record
from meta_magic.recording.torch_private import meta_kernels, optimizer_module


def test_recordings_that_overlap_on_two_threads_leave_torch_as_it_was():
    def read():
        return [
            *(torch.load, torch.save, torch.from_numpy, torch.autocast.__init__),
            *(torch.autocast.__enter__, meta_kernels.device_hint),
            optimizer_module._get_fused_kernels_supported_devices,
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
