"""Run Python's garbage collector as often as without a recording.

A recording keeps about two objects for each that the program makes. So the collector
would run three times as often, and free cycles of tensors, which count as memory until
then, too early. Full collections are rarer still: they took a quarter of the time of
building a model of 4,000 modules in a recording.
"""

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from threading import RLock, get_ident
from time import sleep
from typing import Final

N_OBJECTS: Final = 3
"""How many objects a recorded program makes for each object of the plain program."""

RARER: Final = 10  # the factor by which full collections are rarer

LARGEST: Final = 2**31 - 1  # the largest threshold that the collector takes


PAUSE: Final = 0.05  # seconds between two checks whether a recording has ended


class RareCollection:
    """Context manager that raises the collector's thresholds, and puts them back.

    The process has one set of thresholds. Recordings in several threads, or within each
    other, end in any order: the first raises the thresholds, the last restores them.
    """

    def __init__(self) -> None:
        self._lock = RLock()
        self._n_entered = 0
        self._idle: list[int] = []
        self._before = self._within = (0, 0, 0)

    @property
    def n_entered(self) -> int:
        """How many recordings run."""
        return self._n_entered - self._idle.count(get_ident())

    @contextmanager
    def enter_idle(self) -> Iterator[None]:
        """Enter, but record nothing: to this thread it is no recording."""
        with self:
            self._idle.append(get_ident())
            try:
                yield
            finally:
                self._idle.remove(get_ident())

    def __enter__(self) -> None:
        with self._lock:
            if self._n_entered == 0:
                self._before = young, middle, old = gc.get_threshold()
                raised = min(young * N_OBJECTS, LARGEST), min(old * RARER, LARGEST)
                self._within = raised[0], middle, raised[1]
                gc.set_threshold(*self._within)
            self._n_entered += 1

    def wait(self) -> None:
        """Wait while something is recorded: a forked child would have torch's modes."""
        while self.n_entered:
            sleep(PAUSE)

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._n_entered -= 1
            # A cell that set its own thresholds keeps them.
            if self._n_entered == 0 and gc.get_threshold() == self._within:
                gc.set_threshold(*self._before)


RARE_COLLECTION: Final = RareCollection()
"""All recordings of the process enter this one."""
