"""Flags of torch's backends that change what a CPU kernel computes, and its GPUs."""

import sys
from collections.abc import Callable
from typing import Any, Final, NamedTuple

import torch
from torch import cuda
from torch.backends import mkldnn

from meta_magic.torch_private.replaced import Replaceable

# The originals: a recording replaces both, and would ask itself.
has_gpu = cuda.is_available
count_gpus = cuda.device_count

# A cell draws for a planned GPU what the last cell drew, although it set a seed.
seeds = cuda._lazy_seed_tracker


class Flag(NamedTuple):
    """One flag.

    Attributes:
        default: Its value unless somebody sets it.
        read: Returns its value.
        write: Sets it.
        setters: The functions that set it. Without them a recording does not notice
            that the flag had another value for a part of a cell.
    """

    default: Any
    read: Callable[[], Any]
    write: Callable[[Any], Any]
    setters: tuple[Replaceable, ...]


def flushes_denormals() -> bool:
    """Whether the processor takes tiny numbers for zero, also in Python.

    Torch sets this flag of the processor, and cannot read it.
    """
    least = sys.float_info.min
    return least / 2 == 0


# By the name under which users set it.
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


def last_seeding() -> tuple[object, ...]:
    """Return a value that differs after each seeding of GPUs.

    Torch keeps each seeding until GPUs are used.
    """
    started = [generator.initial_seed() for generator in cuda.default_generators]
    return seeds.manual_seed_all_cb, seeds.manual_seed_cb, *started
