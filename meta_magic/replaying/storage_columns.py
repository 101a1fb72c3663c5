"""What is known of each storage of a program, in a few bytes: most are soon dead."""

from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from collections.abc import Set as AbstractSet
from typing import Final

__all__ = ["NOTHING", "Dead", "Writers"]

NOTHING: Final = -1


class Dead(AbstractSet[int]):
    """The storages that were freed."""

    def __init__(self) -> None:
        self._is_dead = bytearray()

    def update(self, storages: Iterable[int]) -> None:
        """Note that some were freed."""
        for storage in storages:
            missing = storage + 1 - len(self._is_dead)
            if missing > 0:
                self._is_dead.extend(bytes(missing))
            self._is_dead[storage] = True

    def __contains__(self, storage: object) -> bool:
        is_dead = self._is_dead
        if not isinstance(storage, int) or storage >= len(is_dead):
            return False
        return bool(is_dead[storage])

    def __rsub__(self, storages: AbstractSet[int]) -> set[int]:
        """Return those of some storages that were not freed."""
        is_dead, end = self._is_dead, len(self._is_dead)
        return {s for s in storages if s >= end or not is_dead[s]}

    def among(self, storages: Iterable[int]) -> list[int]:
        """Return those of some storages that were freed."""
        is_dead, end = self._is_dead, len(self._is_dead)
        return [s for s in storages if s < end and is_dead[s]]

    def __iter__(self) -> Iterator[int]:
        return (storage for storage, is_dead in enumerate(self._is_dead) if is_dead)

    def __len__(self) -> int:
        return self._is_dead.count(True)

    @classmethod
    def _from_iterable(cls, storages: Iterable[int]) -> set[int]:  # type: ignore[override]  # what sets and this give together
        return set(storages)


class Writers:
    """The calls that made or wrote each storage: most are written by one alone.

    Args:
        births: For each storage, the call that made it; -1 if none did.
    """

    def __init__(self, births: "array[int]") -> None:
        self._births = births
        self._later: dict[int, array[int]] = {}

    def __contains__(self, storage: int) -> bool:
        return self._births[storage] != NOTHING or storage in self._later

    def add(self, storage: int, call: int) -> None:
        """Note that a call, the last one so far, wrote a storage that was there."""
        self.extend(storage, (call,))

    def extend(self, storage: int, calls: Iterable[int]) -> None:
        """Note that calls did, in order."""
        known = self._later.get(storage)
        if known is None:
            known = self._later[storage] = array("I")
        known.extend(calls)

    def of(self, storage: int) -> list[int]:
        """Return the calls that made or wrote a storage, in order."""
        birth = self._births[storage]
        return [*([] if birth == NOTHING else [birth]), *self._later.get(storage, ())]

    def find_last(self, storage: int, before: int) -> int:
        """Return the last of them before a call; -1 if there is none."""
        calls = self._later.get(storage, ())
        position = bisect_left(calls, before)
        if position:
            return calls[position - 1]
        birth = self._births[storage]
        return birth if birth < before else NOTHING
