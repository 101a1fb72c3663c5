"""Integers in a row that goes on; a view of those that are there copies nothing."""

from array import array
from collections.abc import Sequence
from typing import Final

import numpy as np

__all__ = ["Growing"]

ROOM: Final = 2**8
"""For how many there is room at first: small cells have few, and are kept for long."""


class Growing:
    """Integers of 32 bits, of which more and more are added at the end."""

    def __init__(self) -> None:
        self._room = np.empty(ROOM, np.uint32)
        self._n = 0

    def __len__(self) -> int:
        return self._n

    def extend(self, numbers: Sequence[int]) -> None:
        """Add some at the end."""
        end = self._n + len(numbers)
        if end > len(self._room):
            room = np.empty(2 * end, np.uint32)  # memory is taken as it is written
            room[: self._n] = self._room[: self._n]
            self._room = room
        self._room[self._n : end] = array("I", numbers)  # quicker than of a list
        self._n = end

    def follow(self, column: Sequence[int]) -> memoryview:
        """Add what a longer column has more, and return a view of all."""
        self.extend(column[self._n :])
        return self.view()

    def view(self) -> memoryview:
        """Return all that are there now, which stays as it is."""
        return self._room.data[: self._n]
