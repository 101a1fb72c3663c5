"""Corrected meta kernels, beside the CPU's own; and which of them can go."""

import pytest
import torch

from meta_magic import record
from meta_magic.recording.corrections import CORRECTIONS


def groups(*ends):
    return torch.tensor(ends, dtype=torch.int32)


def edges():
    return torch.linspace(0, 1, 6)


GROUPED = {
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
FACTORS = {
    "wide": lambda: torch.geqrf(torch.randn(2, 3, 5)),
    "high": lambda: torch.geqrf(torch.randn(5, 3)),
}
HISTOGRAMS = {
    "bins": lambda: torch.histogram(torch.rand(9), 4),
    "edges": lambda: torch.histogram(torch.rand(9), edges()),
    "boxes": lambda: torch.histogramdd(torch.rand(9, 2), bins=[3, 4]),
    "boxes by edges": lambda: torch.histogramdd(
        torch.rand(9, 2), bins=[edges(), edges()]
    ),
}
CALLS = GROUPED | FACTORS | HISTOGRAMS


def describe(returned):
    """Return what is to be the same of all tensors returned."""
    many = [returned] if isinstance(returned, torch.Tensor) else [*returned]
    flat = [t for one in many for t in (one if isinstance(one, tuple) else [one])]
    return [(t.shape, t.stride(), t.dtype) for t in flat]


@pytest.mark.parametrize("name", CALLS)
def test_a_corrected_kernel_returns_what_the_cpu_does(name):
    wanted = describe(CALLS[name]())
    with record():
        met = CALLS[name]()
    assert describe(met) == wanted


@pytest.mark.parametrize("name", CALLS)
def test_every_correction_is_still_needed(name):
    """Fails when torch is right by itself: then remove the entry."""
    with torch.device("meta"), pytest.raises(RuntimeError, match=r"BF16|Meta kernel"):
        CALLS[name]()


def test_every_correction_is_tested():
    with record() as trace:
        for call in CALLS.values():
            call()
    assert set(CORRECTIONS) <= {op.op for op in trace.ops}
