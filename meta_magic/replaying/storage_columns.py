"""What is known of each storage of a program, in a few bytes: most are soon dead.

Their numbers are those from zero on, and so columns do what dictionaries would.
"""

from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator, MutableMapping
from collections.abc import Set as AbstractSet
from typing import Final

__all__ = ["NOTHING", "Dead", "Numbers", "Writers"]

NOTHING: Final = -1


class Numbers(MutableMapping[int, int]):
    """A number, not negative, for some storages."""

    def __init__(self) -> None:
        self._values = array("q")

    def __getitem__(self, storage: int) -> int:
        values = self._values
        number = values[storage] if storage < len(values) else NOTHING
        if number == NOTHING:
            raise KeyError(storage)
        return number

    def get(self, storage: int, default: int = NOTHING) -> int:  # type: ignore[override]  # the general one asks for an exception
        """Return the number of a storage; another if it has none."""
        values = self._values
        number = values[storage] if storage < len(values) else NOTHING
        return default if number == NOTHING else number

    def __contains__(self, storage: object) -> bool:
        return isinstance(storage, int) and self.get(storage) != NOTHING

    def __setitem__(self, storage: int, number: int) -> None:
        missing = storage + 1 - len(self._values)
        if missing > 0:
            self._values.extend([NOTHING] * missing)
        self._values[storage] = number

    def __delitem__(self, storage: int) -> None:
        self._values[storage] = NOTHING

    def __iter__(self) -> Iterator[int]:
        return (s for s, number in enumerate(self._values) if number != NOTHING)

    def __len__(self) -> int:
        return len(self._values) - self._values.count(NOTHING)


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
        births: For each storage, the call that made it.
    """

    def __init__(self, births: Numbers) -> None:
        self._births = births
        self._later: dict[int, array[int]] = {}

    def __contains__(self, storage: int) -> bool:
        return storage in self._births or storage in self._later

    def add(self, storage: int, call: int) -> None:
        """Note that a call, the last one so far, wrote a storage that was there."""
        known = self._later.get(storage)
        if known is None:
            known = self._later[storage] = array("I")
        known.append(call)

    def of(self, storage: int) -> list[int]:
        """Return the calls that made or wrote a storage, in order."""
        birth = self._births.get(storage)
        return [*([] if birth == NOTHING else [birth]), *self._later.get(storage, ())]

    def find_last(self, storage: int, before: int) -> int:
        """Return the last of them before a call; -1 if there is none."""
        calls = self._later.get(storage, ())
        position = bisect_left(calls, before)
        if position:
            return calls[position - 1]
        birth = self._births.get(storage)
        return birth if birth < before else NOTHING
