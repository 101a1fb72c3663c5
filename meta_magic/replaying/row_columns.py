"""The tensors of many rows at once, as columns: a loop makes a million of them."""

from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from meta_magic.trace.program import HEADER, Program, Randomness
from meta_magic.trace.signature import Signature, span_nbytes

__all__ = ["Columns", "RowColumns", "columns_of", "pick_rows", "read_rows"]

Integers: TypeAlias = npt.NDArray[np.int64]
Truths: TypeAlias = npt.NDArray[np.bool_]

IS_MADE: Final = 1
IS_WRITTEN: Final = 2


class Columns(NamedTuple):
    """What was recorded, as a forward replay reads it.

    Attributes:
        words: All rows.
        storage_by_tensor: The storage of each tensor.
        signatures: All signatures.
        deaths: Pairs (calls before, storage) of the storages that were freed.
        randomness: Returns what was drawn.
    """

    words: memoryview
    storage_by_tensor: Sequence[int]
    signatures: Sequence[Signature]
    deaths: Sequence[int]
    randomness: Callable[[], Randomness]


def columns_of(program: Program) -> Columns:
    """Return what a forward replay reads of a program."""
    return Columns(
        words=memoryview(program.words).cast("I"),
        storage_by_tensor=memoryview(program.storage_by_tensor).cast("I"),
        signatures=program.signatures,
        deaths=memoryview(program.deaths).cast("I"),
        randomness=lambda: program.randomness,
    )


def pick_rows(
    columns: Columns, starts: Integers, is_passed: Truths, is_copy: Truths
) -> Integers:
    """Return which of some calls are to be run.

    Args:
        columns: What was recorded.
        starts: Where their rows begin.
        is_passed: Of each signature, whether its calls are passed over.
        is_copy: Whether they are where both tensors have one storage: copies of what
            ``N[i] += 1`` has added to, to itself.
    """
    words, storages = np.asarray(columns.words), np.asarray(columns.storage_by_tensor)
    numbers = words[starts]
    is_picked, copies = ~is_passed[numbers], np.flatnonzero(is_copy[numbers])
    first = starts[copies] + HEADER
    is_same = storages[words[first]] == storages[words[first + 1]]
    is_picked[copies[is_same]] = False
    return np.flatnonzero(is_picked)


class RowColumns(NamedTuple):
    """One item for each tensor of some calls, in order.

    Attributes:
        calls: The call.
        storages: The storage.
        spans: Bytes from the start of the storage to the end of the tensor.
        is_made: Whether the call returns it.
        is_written: Whether the call writes it.
    """

    calls: Integers
    storages: Integers
    spans: Integers
    is_made: Truths
    is_written: Truths

    def list_firsts(self) -> tuple[Integers, Integers]:
        """Return the storages, each once, and where each stands first."""
        storages, firsts = np.unique(self.storages, return_index=True)
        return storages, firsts

    def list_writes(self) -> Iterator[tuple[int, list[int]]]:
        """Yield the storages that are written, each with the calls, in order."""
        written, calls = self.storages[self.is_written], self.calls[self.is_written]
        order = np.argsort(written, kind="stable")
        storages, starts = np.unique(written[order], return_index=True)
        parts = np.split(calls[order], starts[1:])
        for storage, part in zip(storages.tolist(), parts, strict=False):
            yield storage, part.tolist()


def read_rows(program: Program, first: int, end: int) -> RowColumns:
    """Return the tensors of a program's calls from one up to another."""
    words = np.frombuffer(program.words, np.uint32)
    storage_by_tensor = np.frombuffer(program.storage_by_tensor, np.uint32)
    offsets = np.asarray(program.offsets)[first : end + 1].astype(np.int64)
    counts = np.diff(offsets) - HEADER
    numbers, signature_of = np.unique(words[offsets[:-1]], return_inverse=True)
    facts = [describe(program.signatures[number]) for number in numbers.tolist()]
    bases = np.cumsum([0, *[len(rows) for rows in facts]])
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
    """Return span and flags of each tensor of a signature's calls."""
    inputs = [
        (span_nbytes(geometry), IS_WRITTEN * (index in signature.writes))
        for index, geometry in enumerate(signature.inputs)
    ]
    return inputs + [(span_nbytes(geometry), IS_MADE) for geometry in signature.outputs]
