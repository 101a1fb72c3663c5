"""The flags of torch's backends that decide what a kernel computes on the CPU."""

import sys
from collections.abc import Callable
from typing import Any, Final, NamedTuple

import torch
from torch.backends import mkldnn

from meta_magic.torch_private.replaced import Replaceable

__all__ = ["FLAGS", "Flag", "flushes_denormals"]


class Flag(NamedTuple):
    """One flag.

    Attributes:
        default: What it is unless somebody sets it.
        read: Returns what it is.
        write: Sets it.
        setters: By which functions it is set. Without them nobody knows that it was
            another one for a part of a cell.
    """

    default: Any
    read: Callable[[], Any]
    write: Callable[[Any], Any]
    setters: tuple[Replaceable, ...]


def flushes_denormals() -> bool:
    """Whether tiny numbers are taken for zero, which torch sets and does not tell.

    It is a flag of the processor, for Python's numbers, too.
    """
    least = sys.float_info.min
    return least / 2 == 0


FLAGS: Final = {
    "torch.backends.mkldnn.enabled": Flag(
        default=True,
        read=torch._C._get_mkldnn_enabled,
        write=torch._C._set_mkldnn_enabled,
        setters=(
            (torch._C, "_set_mkldnn_enabled"),
            (vars(type(mkldnn))["enabled"], "setter"),
        ),
    ),
    "torch.set_flush_denormal": Flag(
        default=False,
        read=flushes_denormals,
        write=torch.set_flush_denormal,
        setters=((torch, "set_flush_denormal"),),
    ),
    "torch.set_deterministic_debug_mode": Flag(
        default=0,
        read=torch.get_deterministic_debug_mode,
        write=torch.set_deterministic_debug_mode,
        setters=((torch._C, "_set_deterministic_algorithms"),),
    ),
    "torch.set_float32_matmul_precision": Flag(
        default="highest",
        read=torch.get_float32_matmul_precision,
        write=torch.set_float32_matmul_precision,
        setters=((torch._C, "_set_float32_matmul_precision"),),
    ),
}
"""By the name under which its user sets it."""
