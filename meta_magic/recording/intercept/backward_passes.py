"""Backward passes: what the user's own code does in them is code of the cell, too.

Torch takes a function mode away while it handles a call, and so while ``backward()``
runs hooks, custom functions, and what checkpointing computes again.
"""

from typing import Any

from meta_magic.torch_private.modes import (
    DeviceContext,
    function_mode_stack,
    pop_function_mode,
    push_function_mode,
)
from meta_magic.torch_private.replaced import RUN_BACKWARD
from meta_magic.torch_private.replacing import Replacements

__all__ = ["BackwardPasses"]


class BackwardPasses(Replacements):
    """Have a function mode be on while autograd runs, within the block.

    Args:
        mode: The mode.
    """

    def __init__(self, mode: DeviceContext) -> None:
        super().__init__()
        self._mode = mode

    def __enter__(self) -> None:
        self.replace_here(RUN_BACKWARD, self._run)

    def _run(self, plain: Any, *args: Any, **kwargs: Any) -> Any:
        if self._mode in function_mode_stack():
            return plain(*args, **kwargs)
        push_function_mode(self._mode)
        try:
            return plain(*args, **kwargs)
        finally:
            pop_function_mode()
