"""Hooks and ``Function.backward`` are the cell's code, and so run under its mode.

Torch takes a function mode away from ``loss.backward()``, and leaves it on in
``torch.autograd.backward(loss)``.
"""

import threading
from collections.abc import Callable
from typing import Any

from meta_magic.recording.intercept.function_mode import FunctionMode
from meta_magic.torch_private.modes import (
    function_mode_stack,
    pop_function_mode,
    push_function_mode,
)
from meta_magic.torch_private.replaced import RUN_BACKWARD
from meta_magic.torch_private.replacing import Replacements

__all__ = ["BackwardMode"]


class BackwardMode(Replacements):
    """Have a function mode on while gradients are computed, within the block.

    Args:
        functions: The mode; that of the thread in which the block is entered.
    """

    def __init__(self, functions: FunctionMode) -> None:
        super().__init__()
        self._functions = functions
        self._thread = 0

    def __enter__(self) -> None:
        self._thread = threading.get_ident()
        self.wrap(RUN_BACKWARD, self._wrap)

    def _wrap(self, run: Callable[..., Any]) -> Callable[..., Any]:
        def run_backward(*args: Any, **kwargs: Any) -> Any:
            is_other = threading.get_ident() != self._thread
            if is_other or self._functions in function_mode_stack():
                return run(*args, **kwargs)
            push_function_mode(self._functions)
            try:
                return run(*args, **kwargs)
            finally:
                pop_function_mode()

        return run_backward
