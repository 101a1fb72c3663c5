"""Save torch's modes and default device, and restore them by identity.

``Snapshot`` closes what a cell left open. In ``WithoutModes`` torch runs as if no cell
recorded it; in ``RealTorch`` a replay runs. ``FLAGS`` are flags of torch's backends
that change what a CPU kernel computes.

:func:`fork` is ``os.fork`` for a child that runs backward passes.
"""

import ctypes
import os
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import torch
from torch import cuda
from torch.backends import mkldnn

from meta_magic.torch_private.interrupts import Interrupts
from meta_magic.torch_private.modes import (
    DISPATCH_FLAGS,
    GLOBAL_DEVICE_CONTEXT,
    BelowTransforms,
    DisableAutocast,
    device_module,
    dispatch_mode_stack,
    function_mode_stack,
    pop_dispatch_mode,
    pop_function_mode,
    push_dispatch_mode,
    push_function_mode,
    python_dispatch,
    set_compile_internals_flag,
)
from meta_magic.torch_private.replacing import Replaceable

if TYPE_CHECKING:
    from contextlib import AbstractContextManager


# The originals: a recording replaces both, and would ask itself.
has_gpu = cuda.is_available
count_gpus = cuda.device_count

# A cell draws for a planned GPU what the last cell drew, although it set a seed.
seeds = cuda._lazy_seed_tracker


class Flag(NamedTuple):
    """One flag.

    Attributes:
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
    """Return a value that differs after each seeding of GPUs."""
    started = [generator.initial_seed() for generator in cuda.default_generators]
    return seeds.manual_seed_all_cb, seeds.manual_seed_cb, *started


class Snapshot:
    """The mode stacks and default device of this thread, to be restored by identity."""

    def __init__(self) -> None:
        self._dispatch_modes = list(dispatch_mode_stack())
        self._function_modes = list(function_mode_stack())
        self._flags = {name: getattr(python_dispatch, name) for name in DISPATCH_FLAGS}
        self._current_device = device_module.CURRENT_DEVICE
        self._default_context = getattr(GLOBAL_DEVICE_CONTEXT, "device_context", None)

    def describe_left_open(self, own: Sequence[object]) -> list[str]:
        """Return a note on the modes that are active, are not ``own``, and are new."""
        default = getattr(GLOBAL_DEVICE_CONTEXT, "device_context", None)
        known = (*self._dispatch_modes, *self._function_modes, *own, default)
        now, ids = (*dispatch_mode_stack(), *function_mode_stack()), {*map(id, known)}
        left = [type(mode).__name__ for mode in now if id(mode) not in ids]
        return [f"modes left open were closed: {', '.join(left)}"] if left else []

    def restore(self) -> list[str]:
        """Restore everything; return notes on changes besides the modes."""
        restore_modes(self._dispatch_modes, self._function_modes)
        notes = []
        for name, value in self._flags.items():
            # The flags are global: a mode of another thread may have set one.
            setattr(python_dispatch, name, value and bool(self._dispatch_modes))
        set_compile_internals_flag(getattr(python_dispatch, DISPATCH_FLAGS[-1]))
        device_module.CURRENT_DEVICE = self._current_device
        context = getattr(GLOBAL_DEVICE_CONTEXT, "device_context", None)
        if context is not self._default_context:
            device = getattr(context, "device", None)
            what = f"torch.set_default_device({device})"
            notes.append(f"{what} was undone after the cell")
            GLOBAL_DEVICE_CONTEXT.device_context = self._default_context
        return notes


def restore_modes(dispatch: Sequence[object], function: Sequence[object]) -> None:
    """Make the two stacks of modes hold these modes; compared by identity."""
    of_dispatch = dispatch_mode_stack, pop_dispatch_mode, push_dispatch_mode
    of_function = function_mode_stack, pop_function_mode, push_function_mode
    both = (dispatch, of_dispatch), (function, of_function)
    for wanted, (stack, pop, push) in both:
        if [*map(id, stack())] != [*map(id, wanted)]:
            while stack():
                pop()
            for mode in wanted:
                push(mode)


class WithoutModes:
    """Context manager without modes, autocast and transforms of ``torch.func``."""

    def __enter__(self) -> None:
        self._snapshot = Snapshot()
        self._without_autocast: Any = DisableAutocast()
        restore_modes([], [])
        self._without_autocast.__enter__()
        self._below_transforms: Any = BelowTransforms()  # its constructor enters it

    def __exit__(self, *exception: object) -> None:
        self._below_transforms.__exit__(*exception)
        self._without_autocast.__exit__(*exception)
        self._snapshot.restore()


class RealTorch:
    """Context manager without modes and gradients, in which a replay runs.

    Without inference mode, too: its tensors could never be trained. Interrupts wait
    while these contexts are entered or left.
    """

    def __enter__(self) -> None:
        self._interrupts = Interrupts()
        self._contexts: tuple[AbstractContextManager[Any], ...] = (
            WithoutModes(),
            torch.inference_mode(mode=False),
            torch.no_grad(),
        )
        self._interrupts.own()  # from here on interrupts wait: this is an __enter__
        for context in self._contexts:
            context.__enter__()

    def __exit__(self, *_: object) -> None:
        for context in reversed(self._contexts):
            context.__exit__(None, None, None)
        self._interrupts.give_back()


def fork() -> int:
    """Fork this process, as ``os.fork`` does; backward passes on meta run in the child.

    Where torch sees a GPU, the first backward pass of a process starts a thread for it,
    and torch refuses all backward passes in children that are forked later, by a
    handler of the C library. On meta no such thread is needed, so the child is forked
    without handlers, but for Python's own.

    Source: ``track_bad_autograd_forks`` in ``torch/csrc/autograd/engine.cpp``.
    """
    libc, python = ctypes.PyDLL(None, use_errno=True), ctypes.pythonapi
    if not (count_gpus() and hasattr(libc, "_Fork")):
        return os.fork()
    python.PyOS_BeforeFork()
    number: int = libc._Fork()
    if number:
        python.PyOS_AfterFork_Parent()
    else:
        python.PyOS_AfterFork_Child()
    if number < 0:
        raise OSError(ctypes.get_errno(), "no child process could be forked")
    return number
