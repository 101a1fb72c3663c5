"""Let Python's garbage collector look no more often at what the cell itself makes.

A recording makes about two objects that stay for each of the program's: what lies in
circles is to die after about as many of the program's objects as without a recording,
for its tensors count as memory until then. The whole heap is looked at less often
still: of a model of 4,000 modules built in a recording that took a quarter of the time.
"""

import gc
from threading import RLock
from typing import Final

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

    def __init__(self) -> None:
        self._lock = RLock()
        self._n_entered = 0
        self._before = self._within = (0, 0, 0)

    @property
    def n_entered(self) -> int:
        """How many recordings run."""
        return self._n_entered

    def __enter__(self) -> None:
        with self._lock:
            if self._n_entered == 0:
                self._before = young, middle, old = gc.get_threshold()
                raised = min(young * N_OBJECTS, LARGEST), min(old * RARER, LARGEST)
                self._within = raised[0], middle, raised[1]
                gc.set_threshold(*self._within)
            self._n_entered += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._n_entered -= 1
            # A cell that set its own keeps them.
            if self._n_entered == 0 and gc.get_threshold() == self._within:
                gc.set_threshold(*self._before)


RARE_COLLECTION: Final = RareCollection()
"""The one of this process, which all recordings enter."""
