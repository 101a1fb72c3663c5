"""Strides that torch's kernels on meta choose by device, beside the CPU's."""

import pytest
import torch

from meta_magic import record


def describe(returned):
    """Return what is to be the same of all tensors returned."""
    many = [returned] if isinstance(returned, torch.Tensor) else returned
    return [(t.shape, t.dtype, t.stride()) for t in many]


STRIDES = {
    "svd": lambda: torch.linalg.svd(torch.randn(3, 5)),
    "eig": lambda: torch.linalg.eig(torch.randn(5, 5)),
    "rfftn": lambda: torch.fft.rfftn(torch.randn(2, 3, 4)),
    "nonzero_static": lambda: torch.nonzero_static(torch.ones(3, 4), size=5),
}


@pytest.mark.parametrize("name", STRIDES)
def test_strides_are_those_of_the_cpu_as_on_the_cpu(name):
    wanted = describe(STRIDES[name]())
    with record(as_device="cpu"):
        met = STRIDES[name]()
    assert describe(met) == wanted


@pytest.mark.parametrize("name", STRIDES)
def test_strides_are_otherwise_as_on_meta(name):
    """Fails for all when meta kernels need not be told the device any more."""
    with record(as_device="meta"):
        met = STRIDES[name]()
    assert describe(met) != describe(STRIDES[name]())
