"""Parameters that are made: no mode and no hook of torch sees it."""

from collections.abc import Callable
from functools import wraps
from typing import Any

from torch import Tensor

from meta_magic.torch_private.replaced import MAKE_PARAMETER
from meta_magic.torch_private.replacing import Replacements

__all__ = ["NewParameters"]


class NewParameters(Replacements):
    """Context manager that hears of each parameter as it is made.

    It shares a storage with what it is made of. At the address of a tensor that is
    gone, with that storage and the same geometry, it would be taken for that.

    Args:
        hear: Takes its ``id()``, and None.
    """

    def __init__(self, hear: Callable[[int, None], object]) -> None:
        super().__init__()
        self._hear = hear

    def __enter__(self) -> None:
        self.wrap(MAKE_PARAMETER, self._make_new)

    def _make_new(self, before: Callable[..., Tensor]) -> Callable[..., Tensor]:
        """Return what makes parameters, and has each heard of."""
        hear = self._hear

        @wraps(before)
        def make(*args: Any, **kwargs: Any) -> Tensor:
            made = before(*args, **kwargs)
            hear(id(made), None)
            return made

        return make
