"""What is known of values while a block runs, without any replay.

Of what came from outside, the values themselves; of numbers that an operator made, the
bounds that its signature says. Nothing is kept for it as operators run: the rows are
read when somebody asks.
"""

from collections.abc import Sequence
from typing import Final, TypeAlias

import torch
from torch import Tensor

from meta_magic.recording.identities.tensors import TensorRegistry
from meta_magic.recording.rows.constants import Constants
from meta_magic.recording.rows.row_writer import RowWriter
from meta_magic.recording.rows.value_bounds import Bounds, find_made, has_bounds
from meta_magic.torch_private.modes import DisableTorchDispatch, DisableTorchFunction
from meta_magic.trace.program import HEADER
from meta_magic.trace.signature import Geometry, Signature

__all__ = ["KnownValues"]

MAX_DEPTH: Final = 32
"""How many operators lie between what is asked for and what was given, at most."""

Changes: TypeAlias = tuple[int, Sequence[int], Signature | None]
"""The words of a row, those that name what it made or wrote, and, if it may say between
which values these lie, its signature."""


class KnownValues:
    """Reads the rows of a recording for what its numbers may be.

    Args:
        registry: Which storage each tensor has.
        constants: What came from outside.
        rows: What was recorded so far.

    Attributes:
        row_by_storage: Which row made or wrote a storage last, of integers or truths.
    """

    def __init__(
        self, registry: TensorRegistry, constants: Constants, rows: RowWriter
    ) -> None:
        self._storages = registry.storage_by_tensor
        self._constants = constants
        self._rows = rows
        self._at = 0
        self.row_by_storage: dict[int, int] = {}
        self._changes: list[Changes] = []

    def read_on(self) -> None:
        """Read the rows that were written since: before anything else is asked."""
        self._rows.flush()
        changes, entries = self._changes, self._rows.entries
        for entry in entries[len(changes) :]:
            if entry.changes is None:
                entry.changes = find_changes(entry.signature)
            changes.append(entry.changes)
        rows, storages = self.row_by_storage, self._storages
        words, at = self._rows.words, self._at
        end = len(words)
        while at < end:
            width, changed, _ = changes[words[at]]
            for position in changed:
                rows[storages[words[at + position]]] = at
            at += width
        self._at = at

    def find_real(self, storage: int, geometry: Geometry) -> Tensor | None:
        """Return what a tensor holds that came from outside, and was not written."""
        if storage in self.row_by_storage:
            return None
        return self._constants.find(storage, geometry)

    def find_bounds(
        self,
        storage: int,
        geometry: Geometry,
        end: int | None = None,
        depth: int = MAX_DEPTH,
    ) -> Bounds | None:
        """Return between which values those of a tensor lie, if that is known.

        Args:
            storage: Its storage.
            geometry: Its geometry.
            end: The row that reads it; by default one that is still to be written.
            depth: How many operators there may be before it.
        """
        row = self.row_by_storage.get(storage)
        if row is None:
            real = self._constants.find(storage, geometry)
            return None if real is None or not real.numel() else measure(real)
        signature = self._changes[self._rows.words[row]][2]
        is_later = end is not None and row >= end
        if signature is None or is_later or not depth:
            return None
        if signature.outputs[0].dtype is not geometry.dtype:  # its bytes, read anew
            return None

        def find_input(index: int) -> Bounds | None:
            number = self._storages[self._rows.words[row + HEADER + index]]
            return self.find_bounds(number, signature.inputs[index], row, depth - 1)

        return find_made(signature, find_input)


def measure(real: Tensor) -> Bounds:
    """Return the least and the greatest value of a real tensor."""
    with DisableTorchFunction(), DisableTorchDispatch():
        low, high = torch.aminmax(real)
        return low.item(), high.item()


def find_changes(signature: Signature) -> Changes:
    """Return what the rows of a signature make and write.

    Of what they make, integers and truths alone.
    """
    n_inputs = len(signature.inputs)
    made = zip(signature.outputs, signature.views, strict=True)
    changed = [HEADER + index for index in signature.writes]
    changed += [
        HEADER + n_inputs + index
        for index, (geometry, base) in enumerate(made)
        if base is None and is_of_integers(geometry.dtype)
    ]
    width = HEADER + n_inputs + len(signature.outputs)
    return width, changed, signature if has_bounds(signature) else None


def is_of_integers(dtype: torch.dtype) -> bool:
    """Whether a tensor of a dtype has integers or truths."""
    return not (dtype.is_floating_point or dtype.is_complex)
