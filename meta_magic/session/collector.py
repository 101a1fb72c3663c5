"""Let Python's garbage collector look less often while a cell runs.

A recording makes many small objects that stay until its end. The collector, which by
default looks again after every 700 of them, took five percent of a recording of
Llama-70B to find nothing.
"""

import gc
from typing import Final

__all__ = ["RareCollection"]

YOUNG_OBJECTS: Final = 200_000


class RareCollection:
    """Context manager that raises the collector's first threshold, and puts it back."""

    def __init__(self) -> None:
        self._thresholds = (0, 0, 0)

    def __enter__(self) -> None:
        self._thresholds = gc.get_threshold()
        first, *others = self._thresholds
        if 0 < first < YOUNG_OBJECTS:
            gc.set_threshold(YOUNG_OBJECTS, *others)

    def __exit__(self, *_: object) -> None:
        if gc.get_threshold()[0] == YOUNG_OBJECTS:  # else the cell set its own
            gc.set_threshold(*self._thresholds)
