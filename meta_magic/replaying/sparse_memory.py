"""Which storages of a program share memory because a sparse tensor was made of them.

A sparse tensor has the positions and values that it was made of, and each has a number
of its own in the program. Without this ``values.mul_(2)`` would not be seen in the
sparse tensor made of ``values`` before.
"""

from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Final

from meta_magic.torch_private.tensor_internals import CONSTRUCTORS, POSITIONS
from meta_magic.trace.signature import Signature

__all__ = ["SparseMemory"]


SHARING: Final = CONSTRUCTORS | POSITIONS
"""Operators that share memory with a sparse tensor."""


class SparseMemory:
    """The storages whose content changes when another one is written.

    Attributes:
        is_there: Whether any sparse tensor shares memory.
        changed: Those that calls change beside what they write, by the call's number.
    """

    def __init__(self) -> None:
        self.is_there = False
        self.changed: dict[int, set[int]] = {}
        self._values: dict[int, set[int]] = {}  # those that hold the same, itself too
        self._sparse_by_positions: dict[int, set[int]] = {}

    def follow(
        self, call: int, signature: Signature, storages: Sequence[int]
    ) -> set[int]:
        """Note what the next call shares; return what it changes beside what it writes.

        Args:
            call: The number of the call.
            signature: Its signature.
            storages: The storages of its tensors.
        """
        self.is_there = True
        changed: set[int] = set()
        if signature.op in POSITIONS:
            sparse, positions = storages
            self._share_positions([positions], sparse)
        elif signature.op in CONSTRUCTORS:
            *all_positions, values, sparse = storages
            shared = self._values.setdefault(values, {values})
            shared.add(sparse)
            self._values[sparse] = shared
            self._share_positions(all_positions, sparse)
        elif signature.writes:
            written = {storages[i] for i in signature.writes}
            by_values = [self._values.get(s, ()) for s in written]
            by_positions = [self._sparse_by_positions.get(s, ()) for s in written]
            changed = set(chain(*by_values, *by_positions)) - written
            if changed:
                self.changed[call] = changed
        return changed

    def _share_positions(self, positions: Sequence[int], sparse: int) -> None:
        for storage in positions:
            self._sparse_by_positions.setdefault(storage, set()).add(sparse)

    def forget(self, dead: Iterable[int]) -> None:
        """Forget storages that were freed: no later call changes them."""
        if self.is_there:
            for storage in dead:
                self._values.pop(storage, set()).discard(storage)
                self._sparse_by_positions.pop(storage, None)
