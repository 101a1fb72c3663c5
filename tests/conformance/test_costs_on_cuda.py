"""Memory and time of training steps, beside those of a real GPU, where there is one."""

import pytest
import torch

from meta_magic import record
from meta_magic.cost.device_table import list_devices

if not torch.cuda.is_available():
    pytest.skip("needs a CUDA device", allow_module_level=True)

from tests.conformance.gpu_programs import (
    PROGRAMS,
    measure_peak,
    measure_seconds,
    train,
)

LARGEST_ERROR = 0.01
LARGEST_RATIO = 2.5

WORKSPACES_OF_CUDNN = {"unet", "lstm"}
"""Programs whose memory is that of workspaces which no document tells."""


@pytest.mark.parametrize("name", [n for n in PROGRAMS if n not in WORKSPACES_OF_CUDNN])
def test_the_peak_is_that_of_the_allocator(name):
    with record(as_device="cuda") as trace:
        train(name)
    major, _ = torch.cuda.get_device_capability()
    predicted = trace.memory.as_allocated(major=major).peak_nbytes
    taken = measure_peak(name)
    assert abs(predicted - taken) <= LARGEST_ERROR * taken


def find_device():
    """Return the name of this GPU among those that are known; skip if it is none."""
    name = torch.cuda.get_device_name().replace("NVIDIA", "").split()
    known = [
        d.name for d in list_devices() if all(w in d.title.split() for w in name[:1])
    ]
    if not known:
        pytest.skip(f"no data of {torch.cuda.get_device_name()} are known")
    return known[-1]


@pytest.mark.parametrize("name", ["gpt2", "gpt2_autocast", "llama_1b"])
def test_the_time_is_within_a_factor_of_a_roofline(name):
    device = find_device()
    with record(as_device="cuda") as trace:
        train(name)
    work = trace.cost.roofline(device).by_phase
    estimated = sum(work[phase] for phase in ("forward", "backward", "optimizer")) / 2
    ratio = measure_seconds(name) / estimated
    assert 1 / LARGEST_RATIO <= ratio <= LARGEST_RATIO
