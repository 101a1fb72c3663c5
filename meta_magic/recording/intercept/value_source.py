"""What intercepts asks of whoever knows values: a session, which stands above."""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from torch import Tensor

from meta_magic.recording.identities.tensors import Seen
from meta_magic.recording.signatures.entries import Given, Inputs, OpTable

__all__ = ["ValueSource"]


class ValueSource(Protocol):
    """Computes values of meta tensors while a cell runs.

    Attributes:
        prepare: Called with tensors before their values are read.
    """

    prepare: Callable[[Sequence[Tensor]], object]

    def evaluate(self, table: OpTable, given: Given) -> Any:
        """Return what an operator that failed on meta returns, if it needs only values.

        Returns:
            That; ``NotImplemented`` if it needs none.

        Raises:
            MissingValueError: They cannot be computed, or take too much.
        """

    def peek(self, tensor: Tensor, seen: Seen) -> Tensor | None:
        """Return what a tensor holds, if that takes little; the trace says nothing."""

    def find_number(self, tensor: Tensor, seen: Seen) -> Any:
        """Return the number that a tensor is, if it is there already; else None.

        It counts as an answered call.
        """

    def read(self, chosen: Inputs, *, can_wait: bool = True) -> list[Tensor]:
        """Return what tensors hold; those that share a storage do so again.

        Args:
            chosen: The tensors, as they were seen.
            can_wait: Whether the code asked for the values; else little is computed.

        Raises:
            MissingValueError: They cannot be computed, or take too much.
        """

    def state_at(self, source: int) -> Tensor | None:
        """Return where a CPU generator would stand, had the draws before been made.

        None if that takes too much.

        Args:
            source: The place, as the source of a draw.
        """
