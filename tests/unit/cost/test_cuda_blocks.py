"""What torch's allocator would count on a GPU."""

import pytest
import torch
from torch import nn

from meta_magic.session.record import record

WORKSPACE = 8_519_680  # of a GPU before Hopper: two of 4 MiB, eight of 16 KiB


def test_a_storage_takes_whole_blocks():
    with record() as trace:
        a = torch.ones(1, device="cuda")
        b = torch.ones(129, device="cuda")
        c = torch.ones(0, device="cuda")
    allocated = trace.memory.as_allocated()
    assert allocated.live_nbytes == (512, 512 + 1024, 512 + 1024)
    assert (allocated.place, allocated.workspace_nbytes) == ("cuda:0", 0)
    assert a.numel() + b.numel() + c.numel() == 130


@pytest.mark.parametrize(
    ("major", "nbytes"), [(8, WORKSPACE), (9, 32 * 2**20), (12, 32 * 2**20)]
)
def test_each_thread_that_multiplies_has_a_workspace(major, nbytes):
    with record(as_device="cuda") as trace:
        loss = nn.Linear(2, 2)(torch.ones(1, 2)).sum()
        loss.backward()
    allocated = trace.memory.as_allocated(major=major)
    ops = [call.op for call in trace.ops]
    forward, backward = ops.index("aten.addmm.default"), ops.index("aten.mm.default")
    live = allocated.live_nbytes
    assert live[forward - 1] < nbytes <= live[forward] < 2 * nbytes <= live[backward]
    assert allocated.peak_nbytes == max(live)
    assert allocated.workspace_nbytes == 2 * nbytes


def test_what_runs_on_the_cpu_needs_no_workspace():
    with record() as trace:
        torch.ones(2, 2) @ torch.ones(2, 2), torch.ones(1, device="cuda")
    assert trace.memory.as_allocated("cuda:0").workspace_nbytes == 0


def test_without_a_gpu_it_is_said_how_to_have_one():
    with record(as_device="cpu") as trace:
        torch.ones(1)
    with pytest.raises(ValueError, match="no tensor is on cuda, only on cpu: name a"):
        trace.memory.as_allocated()


def test_what_is_not_counted_is_said():
    with record(as_device="cuda") as trace:
        torch.ones(2, 2) @ torch.ones(2, 2)
    text = str(trace.memory.as_allocated())
    assert text.startswith("cuda:0: 8.1 MiB at the peak, with workspaces of cuBLAS (8")
    assert text.endswith("those of cuDNN are not counted: no document has them")
