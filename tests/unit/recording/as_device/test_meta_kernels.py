"""Functions of torch choose, on meta, as they do on the device."""

import pytest
import torch
from torch.nn import functional as F

from meta_magic import record
from tests.unit.eager import Names

CALLS = {
    "bilinear": lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"),
    "trilinear": lambda x: F.interpolate(x[None], scale_factor=2, mode="trilinear"),
    "padding": lambda x: F.pad(x, (1, 1, 1, 1), mode="replicate"),
    "pooling": lambda x: F.max_pool3d(x[None], 2),
}


@pytest.fixture(autouse=True)
def is_deterministic():
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize("name", CALLS)
def test_deterministic_functions_run_the_kernels_of_the_cpu(name):
    with Names() as names:
        CALLS[name](torch.ones(1, 2, 4, 4))
    with record(as_device="cpu") as trace:
        CALLS[name](torch.ones(1, 2, 4, 4))
    assert [call.op for call in trace.ops] == names.ops


def test_deterministic_interpolation_is_made_of_others_on_cuda():
    # torch/nn/functional.py: of _upsample_linear_vec where the input is not on the CPU.
    with record(as_device="cuda") as trace:
        CALLS["bilinear"](torch.ones(1, 2, 4, 4))
    assert "aten.upsample_bilinear2d.default" not in {call.op for call in trace.ops}


def test_what_is_asked_by_others_is_answered_as_ever():
    with record(as_device="cpu"):
        assert torch.are_deterministic_algorithms_enabled()
