"""Corrected meta kernels, beside the CPU's own; and which of them can go."""

import pytest
import torch

from meta_magic import record
from meta_magic.recording.corrections import CORRECTIONS


def groups(*ends):
    return torch.tensor(ends, dtype=torch.int32)


CALLS = {
    "matrix by groups": lambda: torch._grouped_mm(
        torch.randn(6, 8), torch.randn(2, 8, 4), offs=groups(2, 6)
    ),
    "groups by groups": lambda: torch._grouped_mm(
        torch.randn(2, 6, 8), torch.randn(2, 8, 4)
    ),
    "groups by matrix": lambda: torch._grouped_mm(
        torch.randn(2, 4, 8), torch.randn(8, 8), offs=groups(4, 8)
    ),
    "matrix by matrix": lambda: torch._grouped_mm(
        torch.randn(4, 8), torch.randn(8, 4), offs=groups(4, 8)
    ),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_corrected_kernel_returns_what_the_cpu_does(name):
    wanted = CALLS[name]()
    with record():
        met = CALLS[name]()
    assert met.is_meta
    assert (met.shape, met.dtype, met.stride()) == (
        wanted.shape,
        wanted.dtype,
        wanted.stride(),
    )


def test_every_correction_is_still_needed():
    """Fails when torch is right by itself: then remove the entry."""
    with torch.device("meta"), pytest.raises(RuntimeError, match="BF16"):
        CALLS["groups by groups"]()
    assert set(CORRECTIONS) == {"aten._grouped_mm.default"}
