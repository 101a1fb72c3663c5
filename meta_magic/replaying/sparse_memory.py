"""Which storages of a program share memory because a sparse tensor was made of them.

A sparse tensor has the positions and values that it was made of, and each has a number
of its own in the program. Without this ``values.mul_(2)`` would not be seen in the
sparse tensor made of ``values`` before.
"""

from collections.abc import Iterable, Sequence
from typing import Final

from meta_magic.trace.signature import Signature

__all__ = ["SparseMemory"]

CONSTRUCTORS: Final = frozenset(
    {
        "aten._sparse_coo_tensor_with_dims_and_tensors.default",
        "aten.sparse_compressed_tensor.comp_plain_value_size",
    }
)
POSITIONS: Final = frozenset(
    f"aten.{name}.default"
    for name in (
        *("_indices", "indices", "crow_indices", "col_indices"),
        *("ccol_indices", "row_indices"),
    )
)


class SparseMemory:
    """The storages whose content changes when another one is written."""

    def __init__(self) -> None:
        self._values: dict[int, set[int]] = {}  # those that hold the same, itself too
        self._sparse_by_positions: dict[int, set[int]] = {}

    def note(self, signature: Signature, storages: Sequence[int]) -> None:
        """Note what a call shares, if it makes a sparse tensor, or looks into one.

        Args:
            signature: The signature of the call.
            storages: The storages of its tensors.
        """
        if signature.op in POSITIONS:
            sparse, positions = storages
            self._sparse_by_positions.setdefault(positions, set()).add(sparse)
        elif signature.op in CONSTRUCTORS:
            *positions, values, sparse = storages
            shared = self._values.setdefault(values, {values})
            shared.add(sparse)
            self._values[sparse] = shared
            for storage in positions:
                self._sparse_by_positions.setdefault(storage, set()).add(sparse)

    def find_changed(self, written: Iterable[int]) -> set[int]:
        """Return the storages that change as some are written, with these."""
        changed = {*written}
        if self._sparse_by_positions:
            for storage in tuple(changed):
                changed |= self._values.get(storage, set())
                changed |= self._sparse_by_positions.get(storage, set())
        return changed

    def forget(self, dead: Iterable[int]) -> None:
        """Forget storages that were freed."""
        if self._sparse_by_positions:
            for storage in dead:
                self._values.pop(storage, set()).discard(storage)
                self._sparse_by_positions.pop(storage, None)
