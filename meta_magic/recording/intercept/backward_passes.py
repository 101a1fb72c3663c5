"""Record user code that runs in backward passes: hooks, functions, recomputation.

torch removes the function mode while it handles a call, so also while ``backward()``
runs. Without this file a hook would make real tensors and could read no values.
"""

from typing import Any

from meta_magic.recording.intercept.dispatch_mode import DispatchMode
from meta_magic.recording.intercept.function_mode import FunctionMode
from meta_magic.torch_private.modes import (
    function_mode_stack,
    pop_function_mode,
    push_function_mode,
)
from meta_magic.torch_private.replaced import RUN_BACKWARD
from meta_magic.torch_private.replacing import Replacements


class BackwardPasses(Replacements):
    """Keeps the function mode active while autograd runs, within the block.

    Args:
        dispatch: Sees the operators of autograd itself, too.
    """

    def __init__(self, functions: FunctionMode, dispatch: DispatchMode) -> None:
        super().__init__()
        self._functions = functions
        self._dispatch = dispatch

    def __enter__(self) -> None:
        owner, name = RUN_BACKWARD
        self.replace_here(owner, {name: self._run})

    def _run(self, plain: Any, *args: Any, **kwargs: Any) -> Any:
        if self._functions in function_mode_stack():
            return plain(*args, **kwargs)
        dispatch = self._dispatch
        push_function_mode(self._functions)
        before, dispatch.is_in_backward = dispatch.is_in_backward, True
        try:
            return plain(*args, **kwargs)
        finally:
            dispatch.is_in_backward = before
            pop_function_mode()
