"""What is known of values while a block runs, without any replay.

Of what came from outside, the values themselves; of numbers that an operator made, the
bounds that its signature says. Nothing is kept for it as operators run: the rows are
read when somebody asks, and those of earlier recordings, where tensors come from these.
"""

from collections.abc import Callable, Container, Sequence
from typing import Final, TypeAlias

import torch
from torch import Tensor

from meta_magic.recording.identities.tensors import TensorRegistry
from meta_magic.recording.rows.constants import Constants, read_constant
from meta_magic.recording.rows.imports import Imports
from meta_magic.recording.rows.row_writer import RowWriter
from meta_magic.recording.rows.value_bounds import Bounds, Known, find_known, join
from meta_magic.torch_private.modes import DisableTorchDispatch, DisableTorchFunction
from meta_magic.trace.program import HEADER, Import, Program
from meta_magic.trace.program_facts import Constant
from meta_magic.trace.signature import Geometry, Signature

__all__ = ["GrowingValues"]

MAX_DEPTH: Final = 32
"""How many operators lie between what is asked for and what was given, at most."""

KNOWN: Final = "known_values"
"""Where it is kept of a program, as what is cached of it."""

Changes: TypeAlias = tuple[int, Sequence[int], Known | None]
"""The words of a row, those that name what it made or wrote, and what is known of that,
if anything."""


class KnownValues:
    """Knows what the numbers of one recording may be.

    Args:
        find_constant: Returns a storage that came from outside.
        find_import: Returns one that an earlier recording made.

    Attributes:
        row_by_storage: Which row made or wrote a storage last, of integers or truths.
    """

    def __init__(
        self,
        find_constant: Callable[[int], Constant | None],
        find_import: Callable[[int], Import | None],
    ) -> None:
        self._find_constant = find_constant
        self._find_import = find_import
        self._words: Sequence[int] = ()
        self._storages: Sequence[int] = ()
        self._changes: Sequence[Changes] = ()
        self._at = 0
        self.row_by_storage: dict[int, int] = {}
        self._row_before: dict[int, int | None] = {}
        self._found: dict[tuple[int, int], Bounds] = {}

    def read(
        self,
        words: memoryview,
        storages: Sequence[int],
        changes: Sequence[Changes],
    ) -> None:
        """Read the rows after those that were read before.

        Args:
            words: All rows, in the form that ``Program.words`` has.
            storages: The storage of each tensor.
            changes: What the rows of each signature change.
        """
        self._words, self._storages, self._changes = words, storages, changes
        rows, start, at = self.row_by_storage, self._at, 0
        new = words[start:].tolist()  # quicker than one by one
        end = len(new)
        while at < end:
            width, changed, known = changes[new[at]]
            for position in changed:
                storage = storages[new[at + position]]
                if known is not None and known.signature.writes:
                    self._row_before[start + at] = rows.get(storage)
                rows[storage] = start + at
            at += width
        self._at = start + at

    def find_real(self, storage: int, geometry: Geometry) -> Tensor | None:
        """Return what a tensor holds that came from outside, and was not written."""
        if storage in self.row_by_storage:
            return None
        constant = self._find_constant(storage)
        if constant is not None:
            return read_constant(constant, geometry)
        imported = self._find_import(storage)
        if imported is None or imported.is_stale:
            return None
        return read_program(imported.program).find_real(imported.origin, geometry)

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
        is_later = row is not None and end is not None and row >= end
        return None if is_later else self._find_at(row, storage, geometry, depth)

    def _find_at(
        self, row: int | None, storage: int, geometry: Geometry, depth: int
    ) -> Bounds | None:
        """Return the bounds of a tensor as the row left it that is given."""
        if row is None:
            return self._find_outer(storage, geometry, depth)
        known = self._changes[self._words[row]][2]
        if known is None or not depth:
            return None
        signature = known.signature
        is_one = len(signature.outputs) == 1
        at = 0 if is_one else self._find_output(row, signature, storage)
        if signature.outputs[at].dtype is not geometry.dtype:  # its bytes, read anew
            return None
        if (row, at) in self._found:
            return self._found[row, at]

        def find_input(index: int) -> Bounds | None:
            number = self._storages[self._words[row + HEADER + index]]
            return self.find_bounds(number, signature.inputs[index], row, depth - 1)

        made = known.find(find_input, at)
        if not signature.writes:
            if made is not None:
                self._found[row, at] = made
            return made
        before = self._row_before[row]
        return join([made, self._find_at(before, storage, geometry, depth - 1)])

    def _find_output(self, row: int, signature: Signature, storage: int) -> int:
        """Return which of the tensors that a row made lies on a storage."""
        first = row + HEADER + len(signature.inputs)
        made = self._words[first : first + len(signature.outputs)]
        return [*map(self._storages.__getitem__, made)].index(storage)

    def _find_outer(
        self, storage: int, geometry: Geometry, depth: int
    ) -> Bounds | None:
        """Return the bounds of what no row made."""
        real = self.find_real(storage, geometry)
        if real is not None:
            return measure(real) if real.numel() else None
        imported = self._find_import(storage)
        if imported is None or imported.is_stale or not depth:
            return None
        earlier = read_program(imported.program)
        return earlier.find_bounds(imported.origin, geometry, depth=depth - 1)


class GrowingValues(KnownValues):
    """Knows what the numbers of the running recording may be.

    Args:
        registry: Which storage each tensor has.
        constants: What came from outside.
        imports: What earlier recordings made.
        rows: What was recorded so far.
    """

    def __init__(
        self,
        registry: TensorRegistry,
        constants: Constants,
        imports: Imports,
        rows: RowWriter,
    ) -> None:
        super().__init__(constants.find, imports.find)
        self._registry = registry
        self._rows = rows
        self._met: list[Changes] = []
        imports.follow(self.find_written)

    def find_written(self) -> Container[int]:
        """Return the storages that were written so far, or made of whole numbers."""
        self.read_on()
        return self.row_by_storage

    def read_on(self) -> None:
        """Read the rows that were written since: before anything else is asked."""
        self._rows.flush()
        for entry in self._rows.entries[len(self._met) :]:
            if entry.changes is None:
                entry.changes = find_changes(entry.signature)
            self._met.append(entry.changes)
        self.read(self._rows.words.view(), self._registry.storage_by_tensor, self._met)


def read_program(program: Program) -> KnownValues:
    """Return what is known of a recording that is finished: kept with it, as it stays.

    Not in a table: two programs are compared by all that they have.
    """
    kept = vars(program)
    if KNOWN not in kept:
        kept[KNOWN] = build_known(program)
    known: KnownValues = kept[KNOWN]
    return known


def build_known(program: Program) -> KnownValues:
    """Read what is known of a recording that is finished."""
    torn = frozenset(program.torn)
    constants = {c.storage: c for c in program.constants if c.storage not in torn}
    imports = {i.storage: i for i in program.imports}
    known = KnownValues(constants.get, imports.get)
    known.read(
        memoryview(program.words).cast("I"),
        memoryview(program.storage_by_tensor).cast("I"),
        [*map(find_changes, program.signatures)],
    )
    return known


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
    return width, changed, find_known(signature)


def is_of_integers(dtype: torch.dtype) -> bool:
    """Whether a tensor of a dtype has integers or truths."""
    return not (dtype.is_floating_point or dtype.is_complex)
