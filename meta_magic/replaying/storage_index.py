"""Columns about the storages of a program: which calls make, write and read them.

A plan looks up the last call that wrote a storage; a linear search would take minutes
in a loop of a million calls. :func:`read_rows` reads many rows at once, for
:class:`StorageWriters`. :class:`SparseMemory` knows which storages share memory with a
sparse tensor.
"""

from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from itertools import chain
from typing import Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from meta_magic.torch_private.tensor_internals import CONSTRUCTORS, POSITIONS
from meta_magic.trace.program import HEADER, Program
from meta_magic.trace.signature import Signature, span_nbytes

Integers: TypeAlias = npt.NDArray[np.int64]
Truths: TypeAlias = npt.NDArray[np.bool_]

IS_MADE: Final = 1
IS_WRITTEN: Final = 2


class RowColumns(NamedTuple):
    """Columns with one item for each tensor argument and output of some calls."""

    calls: Integers
    storages: Integers
    spans: Integers
    is_made: Truths
    is_written: Truths

    def list_writes(self) -> Iterator[tuple[int, list[int]]]:
        """Yield the storages that are written, each with the calls that write it."""
        written, calls = self.storages[self.is_written], self.calls[self.is_written]
        order = np.argsort(written, kind="stable")
        storages, starts = np.unique(written[order], return_index=True)
        parts = np.split(calls[order], starts[1:])
        for storage, part in zip(storages.tolist(), parts, strict=False):
            yield storage, part.tolist()


def read_rows(program: Program, first: int, end: int) -> RowColumns:
    """Return the tensors of the calls from ``first`` up to ``end``."""
    words = np.frombuffer(program.words, np.uint32)
    storage_by_tensor = np.frombuffer(program.storage_by_tensor, np.uint32)
    offsets = np.asarray(program.offsets)[first : end + 1].astype(np.int64)
    counts = np.diff(offsets) - HEADER
    signature_of = words[offsets[:-1]]
    is_used = np.bincount(signature_of).tolist()
    pairs = zip(program.signatures, is_used, strict=False)
    facts = [describe(signature) if used else [] for signature, used in pairs]
    bases = np.cumsum([0, *map(len, facts)])
    table = np.array([row for rows in facts for row in rows], np.int64).reshape(-1, 2)
    rows = np.repeat(np.arange(len(counts)), counts)
    position = np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts, counts)
    tensors = words[offsets[rows] + HEADER + position]
    spans, flags = table[bases[signature_of[rows]] + position].T
    return RowColumns(
        calls=rows + first,
        storages=storage_by_tensor[tensors].astype(np.int64),
        spans=spans,
        is_made=(flags & IS_MADE) > 0,
        is_written=(flags & IS_WRITTEN) > 0,
    )


def describe(signature: Signature) -> list[tuple[int, int]]:
    """Return (bytes spanned, flags) of each tensor of a signature's calls."""
    inputs = [
        (span_nbytes(geometry), IS_WRITTEN * (index in signature.writes))
        for index, geometry in enumerate(signature.inputs)
    ]
    return inputs + [(span_nbytes(geometry), IS_MADE) for geometry in signature.outputs]


NOTHING: Final = -1


class StorageWriters:
    """The calls that made or wrote each storage; most have one such call."""

    def __init__(self, births: "array[int]") -> None:
        self._births = births
        self._later: dict[int, array[int]] = {}

    def __contains__(self, storage: int) -> bool:
        return self._births[storage] != NOTHING or storage in self._later

    def extend(self, storage: int, calls: Iterable[int]) -> None:
        """Add calls that wrote a storage, in order."""
        known = self._later.get(storage)
        if known is None:
            known = self._later[storage] = array("I")
        known.extend(calls)

    @property
    def written(self) -> AbstractSet[int]:
        """The storages that a call wrote after they were made."""
        return self._later.keys()

    def of(self, storage: int) -> list[int]:
        """Return the calls that made or wrote a storage, in order."""
        birth = self._births[storage]
        return [*([] if birth == NOTHING else [birth]), *self._later.get(storage, ())]

    def find_last(self, storage: int, before: int) -> int:
        """Return the last call that made or wrote a storage before a call, or -1."""
        calls = self._later.get(storage, ())
        position = bisect_left(calls, before)
        if position:
            return calls[position - 1]
        birth = self._births[storage]
        return birth if birth < before else NOTHING


SHARING: Final = CONSTRUCTORS | POSITIONS
"""Operators after which a sparse tensor and another one share memory."""


class SparseMemory:
    """Which storages change with another one, because a sparse tensor was made of it.

    ``values.mul_(2)`` changes ``torch.sparse_coo_tensor(indices, values)``, although
    the program has two storages.
    """

    def __init__(self) -> None:
        self.is_there = False
        self.changed: dict[int, set[int]] = {}
        self._values: dict[int, set[int]] = {}  # groups that share their values
        self._sparse_by_positions: dict[int, set[int]] = {}

    def follow(self, call: int, signature: Signature, storages: list[int]) -> set[int]:
        """Read the next call; return storages that it changes without a write."""
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
        """Forget freed storages: no later call changes them."""
        if self.is_there:
            for storage in dead:
                self._values.pop(storage, set()).discard(storage)
                self._sparse_by_positions.pop(storage, None)
