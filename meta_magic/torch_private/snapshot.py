"""Note torch's modes and default device, and put them back by identity."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from meta_magic.torch_private.interrupts import Interrupts
from meta_magic.torch_private.modes import (
    FLAGS,
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

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

__all__ = ["RealTorch", "Snapshot", "WithoutModes"]


class Snapshot:
    """The mode stacks and default device of this thread, to be restored by identity."""

    def __init__(self) -> None:
        self._dispatch_modes = list(dispatch_mode_stack())
        self._function_modes = list(function_mode_stack())
        self._flags = {name: getattr(python_dispatch, name) for name in FLAGS}
        self._current_device = device_module.CURRENT_DEVICE
        self._default_context = getattr(GLOBAL_DEVICE_CONTEXT, "device_context", None)

    def describe_left_open(self, own: Sequence[object]) -> list[str]:
        """Say which modes are active that neither were before nor are ``own``."""
        default = getattr(GLOBAL_DEVICE_CONTEXT, "device_context", None)
        known = {
            id(mode)
            for mode in (*self._dispatch_modes, *self._function_modes, *own, default)
        }
        left = [
            type(mode).__name__
            for mode in (*dispatch_mode_stack(), *function_mode_stack())
            if id(mode) not in known
        ]
        return [f"modes left open were closed: {', '.join(left)}"] if left else []

    def restore(self) -> list[str]:
        """Put everything back, and say in words what else was not as before."""
        restore_stack(
            self._dispatch_modes,
            dispatch_mode_stack,
            (pop_dispatch_mode, push_dispatch_mode),
        )
        restore_stack(
            self._function_modes,
            function_mode_stack,
            (pop_function_mode, push_function_mode),
        )
        odd = []
        for name, value in self._flags.items():
            # One for all threads: perhaps it was set by a mode of another.
            setattr(python_dispatch, name, value and bool(self._dispatch_modes))
        set_compile_internals_flag(getattr(python_dispatch, FLAGS[-1]))
        device_module.CURRENT_DEVICE = self._current_device
        context = getattr(GLOBAL_DEVICE_CONTEXT, "device_context", None)
        if context is not self._default_context:
            device = getattr(context, "device", None)
            odd.append(f"torch.set_default_device({device}) was undone after the cell")
            GLOBAL_DEVICE_CONTEXT.device_context = self._default_context
        return odd


def restore_stack(
    wanted: Sequence[object],
    stack: Callable[[], Sequence[object]],
    pop_and_push: tuple[Callable[[], Any], Callable[[Any], Any]],
) -> None:
    """Make a mode stack hold the modes ``wanted``."""
    met = list(stack())
    if len(met) == len(wanted) and all(map(is_same, met, wanted)):
        return
    pop, push = pop_and_push
    while stack():
        pop()
    for mode in wanted:
        push(mode)


class WithoutModes:
    """Context manager in which torch does as it is told.

    No mode is on, nor autocast, nor a transform of ``torch.func``.
    """

    def __enter__(self) -> None:
        self._snapshot = Snapshot()
        self._without_autocast: Any = DisableAutocast()
        restore_stack([], dispatch_mode_stack, (pop_dispatch_mode, push_dispatch_mode))
        restore_stack([], function_mode_stack, (pop_function_mode, push_function_mode))
        self._without_autocast.__enter__()
        self._below_transforms: Any = BelowTransforms()  # which enters it

    def __exit__(self, *exception: object) -> None:
        self._below_transforms.__exit__(*exception)
        self._without_autocast.__exit__(*exception)
        self._snapshot.restore()


def is_same(a: object, b: object) -> bool:
    """Whether two names stand for one object."""
    return a is b


class RealTorch:
    """Context manager in which torch does as it is told: no modes, no gradients.

    Nor inference mode, whose tensors could never be trained. An interrupt within waits
    until the contexts that are being entered or left have been.
    """

    def __enter__(self) -> None:
        self._interrupts = Interrupts()
        self._contexts: tuple[AbstractContextManager[Any], ...] = (
            WithoutModes(),
            torch.inference_mode(mode=False),
            torch.no_grad(),
        )
        self._interrupts.own()  # from here on they wait: this is an entry
        for context in self._contexts:
            context.__enter__()

    def __exit__(self, *_: object) -> None:
        for context in reversed(self._contexts):
            context.__exit__(None, None, None)
        self._interrupts.give_back()
