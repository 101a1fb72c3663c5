"""Memory of which a part may hold what lay there before."""

from math import prod
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from meta_magic.replaying.usage import is_dense
from meta_magic.trace.signature import Geometry, span_nbytes

__all__ = ["RawMemory"]

Bytes: TypeAlias = npt.NDArray[np.bool_]


class RawMemory:
    """Which bytes of a storage were written.

    Args:
        nbytes: How many it has.
        is_written: Whether all of them are.
        is_tainted: Whether they were computed from what lay in memory.

    Attributes:
        is_tainted: Whether some were, at some time.
    """

    def __init__(
        self, nbytes: int, *, is_written: bool = False, is_tainted: bool = False
    ) -> None:
        self.is_tainted = is_tainted
        self._nbytes = nbytes
        self._written: Bytes | None = None
        self._is_whole = is_written or nbytes == 0

    def copy(self, nbytes: int) -> "RawMemory":
        """Return another that is the same; none is written if it has other bytes."""
        made = RawMemory(nbytes, is_tainted=self.is_tainted)
        if nbytes == self._nbytes:
            made._is_whole = self._is_whole
            made._written = None if self._written is None else self._written.copy()
        return made

    @property
    def is_written(self) -> bool:
        """Whether all of it is written."""
        if self._written is not None and self._written.all():
            self._written, self._is_whole = None, True
        return self._is_whole

    def holds(self, geometry: Geometry) -> bool:
        """Whether all elements of a tensor are written."""
        if self._is_whole or not prod(geometry.shape):
            return True
        if self._written is None:
            return False
        elements = view(self._written, geometry)
        return elements is not None and bool(elements.all())

    def find_written(self, geometry: Geometry) -> Bytes:
        """Return which elements of a tensor are written."""
        if self._written is None:
            return np.full(geometry.shape, self._is_whole, np.bool_)
        elements = view(self._written, geometry)
        if elements is None or not prod(geometry.shape):
            return np.full(geometry.shape, fill_value=False)
        return np.asarray(elements.all(axis=-1))

    def write(self, geometry: Geometry) -> None:
        """Write the elements of a tensor."""
        is_whole = is_dense(geometry) and span_nbytes(geometry) == self._nbytes
        if is_whole or geometry.storage_offset is None:
            self._written, self._is_whole = None, True
        elif not self._is_whole:
            self._mark(geometry, is_written=True)

    def write_some(self, geometry: Geometry, which: Bytes) -> None:
        """Write some elements of a tensor.

        Args:
            geometry: The tensor's.
            which: Which of them.
        """
        if self._written is None:
            self._written = np.full(self._nbytes, self._is_whole, np.bool_)
        elements = view(self._written, geometry)
        if elements is not None:
            elements[which] = True

    def taint(self, geometry: Geometry) -> None:
        """Write what was computed from what lay in memory over the elements."""
        self.is_tainted = True
        self._mark(geometry, is_written=False)

    def leave_out_gaps(self, geometry: Geometry) -> None:
        """Take what lies between the elements of the only tensor for written."""
        self._is_whole = True
        self._mark(geometry, is_written=False)

    def _mark(self, geometry: Geometry, *, is_written: bool) -> None:
        if self._written is None:
            self._written = np.full(self._nbytes, self._is_whole, np.bool_)
        self._is_whole = False
        elements = view(self._written, geometry)
        if elements is not None:
            elements[...] = is_written
        elif not is_written:
            self._written[...] = False


def view(written: Bytes, geometry: Geometry) -> Bytes | None:
    """Return the bytes of a tensor's elements; None if they have no places."""
    stride, offset, itemsize = (
        geometry.stride,
        geometry.storage_offset,
        geometry.dtype.itemsize,
    )
    if stride is None or offset is None:
        return None
    if not prod(geometry.shape):
        return written[:0]
    return np.lib.stride_tricks.as_strided(
        written[offset * itemsize :],
        (*geometry.shape, itemsize),
        (*(step * itemsize for step in stride), 1),
    )
