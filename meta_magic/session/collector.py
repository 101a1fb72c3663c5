"""Let Python's garbage collector look no more often at what the cell itself makes.

A recording makes about two objects that stay for each of the program's: what lies in
circles is to die after about as many of the program's objects as without a recording,
for its tensors count as memory until then. The whole heap is looked at less often
still: of a model of 4,000 modules built in a recording that took a quarter of the time.
"""

import gc
from threading import RLock
from typing import ClassVar, Final

__all__ = ["RareCollection"]

N_OBJECTS: Final = 3
"""Objects of a program with a recording for each without."""

RARER: Final = 10
"""How much less often the whole heap is looked at."""

LARGEST: Final = 2**31 - 1
"""The largest threshold that the collector takes."""


class RareCollection:
    """Context manager that raises the collector's thresholds, and puts them back.

    They are the process's: recordings of several threads, or within each other, may end
    in any order. The first raises them, the last puts them back.
    """

    _lock: ClassVar = RLock()
    _n_entered: ClassVar = 0
    _before: ClassVar = (0, 0, 0)
    _within: ClassVar = (0, 0, 0)

    @classmethod
    def n_running(cls) -> int:
        """Return how many recordings run in this process."""
        return cls._n_entered

    def __enter__(self) -> None:
        own = RareCollection
        with own._lock:
            if own._n_entered == 0:
                own._before = young, middle, old = gc.get_threshold()
                own._within = (
                    min(young * N_OBJECTS, LARGEST),
                    middle,
                    min(old * RARER, LARGEST),
                )
                gc.set_threshold(*own._within)
            own._n_entered += 1

    def __exit__(self, *_: object) -> None:
        own = RareCollection
        with own._lock:
            own._n_entered -= 1
            # A cell that set its own keeps them.
            if own._n_entered == 0 and gc.get_threshold() == own._within:
                gc.set_threshold(*own._before)
