"""Which calls read a storage: an index that is made when it is first asked for."""

from bisect import bisect_left
from collections.abc import Sequence
from typing import TYPE_CHECKING

from meta_magic.torch_private.interrupts import unbroken

if TYPE_CHECKING:
    from meta_magic.replaying.program_calls import ProgramCalls

__all__ = ["Readers"]


class Readers:
    """For each storage of a program, the calls that have it as an argument, in order.

    Args:
        recorded: The program, which may go on meanwhile.
    """

    def __init__(self, recorded: "ProgramCalls") -> None:
        self._recorded = recorded
        self._n_read = 0
        self._calls: dict[int, list[int]] = {}

    def between(self, storage: int, first: int, last: int) -> Sequence[int]:
        """Return the calls that read a storage, of some, the last one included."""
        self._go_on()
        calls = self._calls.get(storage, [])
        return calls[bisect_left(calls, first) : bisect_left(calls, last + 1)]

    @unbroken
    def _go_on(self) -> None:
        """Look through the calls that are new."""
        recorded = self._recorded
        for index in range(self._n_read, len(recorded)):
            signature, storages = recorded.tensors(index)
            for storage in storages[: len(signature.inputs)]:
                self._calls.setdefault(storage, []).append(index)
        self._n_read = len(recorded)
