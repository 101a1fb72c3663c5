"""Parameters, and tensors of a subclass, that are made: no mode of torch sees it."""

from collections.abc import Callable
from functools import wraps
from typing import Any

from torch import Tensor

from meta_magic.recording.identities.device_plan import is_default_on_meta
from meta_magic.torch_private.replaced import MAKE_PARAMETER, MAKE_TENSOR
from meta_magic.torch_private.replacing import Replacements

__all__ = ["NewParameters"]


class NewParameters(Replacements):
    """Context manager that hears of each parameter as it is made.

    It shares a storage with what it is made of. At the address of a tensor that is
    gone, with that storage and the same geometry, it would be taken for that.

    And ``Labeled(x)``, of a class of the user's, makes what it does without any mode:
    below one torch refuses to give a tensor that operators made another class.

    Args:
        hear: Takes its ``id()``, and None.
    """

    def __init__(self, hear: Callable[[int, None], object]) -> None:
        super().__init__()
        self._hear = hear

    def __enter__(self) -> None:
        self.wrap(MAKE_PARAMETER, self._make_new)
        self.wrap(MAKE_TENSOR, make_of_subclass)

    def _make_new(self, before: Callable[..., Tensor]) -> Callable[..., Tensor]:
        """Return what makes parameters, and has each heard of."""
        hear = self._hear

        @wraps(before)
        def make(*args: Any, **kwargs: Any) -> Tensor:
            made = before(*args, **kwargs)
            hear(id(made), None)
            return made

        return make


def make_of_subclass(before: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Return what makes tensors of a subclass as ``as_subclass`` does."""

    def make(kind: type[Tensor], *args: Any, **kwargs: Any) -> Tensor:
        if kind is Tensor or kwargs or not is_default_on_meta():
            return before(kind, *args, **kwargs)
        is_copy = len(args) == 1 and isinstance(args[0], Tensor)
        return (args[0] if is_copy else before(Tensor, *args)).as_subclass(kind)

    return make
