"""Which calls read a storage: an index that is made when it is first asked for."""

from array import array
from collections.abc import Sequence
from typing import Final, Protocol

from meta_magic.torch_private.interrupts import unbroken
from meta_magic.trace.signature import Signature

__all__ = ["Readers"]

NONE: Final = 0
"""The link that is the end of each chain."""


class Calls(Protocol):
    """The calls of a program that may go on meanwhile."""

    def __len__(self) -> int: ...

    def tensors(self, index: int) -> tuple[Signature, Sequence[int]]:
        """Return the signature of a call, and the storages of all its tensors."""


class Readers:
    """For each storage of a program, the calls that have it as an argument, in order.

    Of the calls that :meth:`go_on` has looked through. A chain for each storage, from
    the last call back, in two columns for all of them.

    Args:
        recorded: Those of a program.
    """

    def __init__(self, recorded: Calls) -> None:
        self._recorded = recorded
        self._n_read = 0
        self._last = array("I")
        self._calls = array("I", [0])
        self._before = array("I", [NONE])

    @unbroken
    def go_on(self) -> None:
        """Look through the calls that are new."""
        recorded = self._recorded
        last, calls, before = self._last, self._calls, self._before
        for index in range(self._n_read, len(recorded)):
            signature, storages = recorded.tensors(index)
            for storage in storages[: len(signature.inputs)]:
                if storage >= len(last):
                    last.extend([NONE] * (storage + 1 - len(last)))
                before.append(last[storage])
                last[storage] = len(calls)
                calls.append(index)
        self._n_read = len(recorded)

    def between(self, storage: int, first: int, last: int) -> Sequence[int]:
        """Return the calls that read a storage, of some, the last one included."""
        found: list[int] = []
        link = self._last[storage] if storage < len(self._last) else NONE
        while link != NONE and self._calls[link] >= first:
            if self._calls[link] <= last:
                found.append(self._calls[link])
            link = self._before[link]
        return found[::-1]
