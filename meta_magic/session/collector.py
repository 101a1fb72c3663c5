"""Let Python's garbage collector look no more often at what the cell itself makes.

A recording makes about two objects that stay for each of the program's: what lies in
circles is to die after about as many of the program's objects as without a recording,
for its tensors count as memory until then. The whole heap is looked at less often
still: of a model of 4,000 modules built in a recording that took a quarter of the time.
"""

import gc
from typing import Final

__all__ = ["RareCollection"]

N_OBJECTS: Final = 3
"""Objects of a program with a recording for each without."""

RARER: Final = 10
"""How much less often the whole heap is looked at."""


class RareCollection:
    """Context manager that raises the collector's thresholds, and puts them back."""

    def __init__(self) -> None:
        self._before = self._within = (0, 0, 0)

    def __enter__(self) -> None:
        self._before = young, middle, old = gc.get_threshold()
        self._within = young * N_OBJECTS, middle, old * RARER
        gc.set_threshold(*self._within)

    def __exit__(self, *_: object) -> None:
        if gc.get_threshold() == self._within:  # else the cell set its own
            gc.set_threshold(*self._before)
