"""Which calls read a storage: an index that is made when it is first asked for."""

from bisect import bisect_left
from collections.abc import Sequence
from typing import Protocol

from meta_magic.trace.signature import Signature

__all__ = ["Readers"]


class Calls(Protocol):
    """The calls of a program that may go on meanwhile."""

    def __len__(self) -> int: ...

    def tensors(self, index: int) -> tuple[Signature, Sequence[int]]:
        """Return the signature of a call, and the storages of all its tensors."""


class Readers:
    """For each storage of a program, the calls that have it as an argument, in order.

    Args:
        recorded: Those of a program.
    """

    def __init__(self, recorded: Calls) -> None:
        self._recorded = recorded
        self._n_read = 0
        self._calls: dict[int, list[int]] = {}

    def between(self, storage: int, first: int, last: int) -> Sequence[int]:
        """Return the calls that read a storage, of some, the last one included."""
        self._go_on()
        calls = self._calls.get(storage, [])
        return calls[bisect_left(calls, first) : bisect_left(calls, last + 1)]

    def _go_on(self) -> None:
        """Look through the calls that are new."""
        recorded = self._recorded
        for index in range(self._n_read, len(recorded)):
            signature, storages = recorded.tensors(index)
            for storage in storages[: len(signature.inputs)]:
                self._calls.setdefault(storage, []).append(index)
        self._n_read = len(recorded)
