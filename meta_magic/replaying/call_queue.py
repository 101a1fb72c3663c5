"""The calls that a backward walk has still to look at."""

from collections.abc import Iterable, Iterator, Mapping
from heapq import heappop, heappush

from meta_magic.replaying.program_calls import ProgramCalls

__all__ = ["CallQueue"]


class CallQueue:
    """The calls to look at, the latest first; more are added while they are taken.

    Args:
        recorded: The program.
        end: The call after the latest one.
        kept: The last call that made or wrote what is known of some storages; -1 if
            that came before all.
    """

    def __init__(
        self, recorded: ProgramCalls, end: int, kept: Mapping[int, int]
    ) -> None:
        self._kept = kept
        self._writers = recorded.writers
        self._now = end
        self._heap: list[int] = []

    def __iter__(self) -> Iterator[int]:
        while self._heap:
            index = -heappop(self._heap)
            if index < self._now:  # else it was taken before
                self._now = index
                yield index

    def add(self, calls: Iterable[int]) -> None:
        """Look at some calls, too, those that are not over yet."""
        for index in calls:
            if index < self._now:
                heappush(self._heap, -index)

    def add_writers(self, storages: Iterable[int]) -> set[int]:
        """Look at whatever changed storages last; return those that are known so."""
        known = set()
        for storage in storages:
            last = self._writers.find_last(storage, self._now)
            if self._kept.get(storage) == last:
                known.add(storage)
            elif last >= 0:
                heappush(self._heap, -last)
        return known
