"""What stands aside while a cell runs: real tensors, and what held them."""

from collections.abc import MutableMapping
from typing import Any, Final, Protocol

import torch
from torch import Tensor

from meta_magic.torch_private.tensor_internals import swap_tensor_impl

__all__ = ["MISSING", "EntryLoan", "Loan", "TensorLoan"]

MISSING: Final = object()


class Loan(Protocol):
    """Something real that stands aside while a cell runs."""

    def exchange(self) -> None:
        """Put what is real in its place, or what the cell has there."""

    @property
    def pair(self) -> tuple[object, object]:
        """What is real, and what the cell has in its place, once it stands aside."""


class TensorLoan:
    """A tensor and its twin on meta."""

    def __init__(self, real: Tensor, twin: Tensor) -> None:
        self.pair = real, twin

    def exchange(self) -> None:
        """Exchange their implementations."""
        torch.clear_autocast_cache()  # it holds parameters, weakly: torch refuses then
        swap_tensor_impl(*self.pair)


class EntryLoan:
    """What stood in a dictionary: the state of an optimizer, a module's tensor.

    Args:
        holder: The dictionary.
        key: Where in it.
        value: What stood there; ``MISSING`` if nothing did.
    """

    def __init__(
        self, holder: MutableMapping[Any, Any], key: object, value: object
    ) -> None:
        self._holder = holder
        self._key = key
        self._value = value

    def exchange(self) -> None:
        """Put it back, and keep what stands there now."""
        now = self._holder.get(self._key, MISSING)
        if self._value is not MISSING:
            self._holder[self._key] = self._value
        elif now is not MISSING:
            del self._holder[self._key]
        self._value = now

    @property
    def pair(self) -> tuple[object, object]:
        """What stands there, and what the cell had."""
        return self._holder.get(self._key), self._value
