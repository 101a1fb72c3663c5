"""Learns what a function does, from one call that was watched."""

from collections.abc import Sequence
from operator import itemgetter
from typing import Any, Final, NamedTuple

from torch import Tensor

from meta_magic.recording.identities.geometries import LiveGeometry
from meta_magic.recording.identities.tensors import Seen, TensorRegistry
from meta_magic.recording.signatures.allowed_values import Allowed
from meta_magic.recording.signatures.entries import Entry, Kind
from meta_magic.recording.signatures.servable import is_as_empty_strided
from meta_magic.recording.signatures.templates import Draw, Output, Template
from meta_magic.torch_private.modes import DisableTorchDispatch
from meta_magic.torch_private.tensor_internals import (
    base_of,
    is_view,
    make_guard,
    version_of,
)
from meta_magic.trace.program import HEADER

__all__ = ["Captured", "learn"]

RETURN_TYPES: Final = "torch.return_types"
"""Module of the named tuples that torch's functions return."""

VIEW: Final = "aten.view.default"
"""What makes the result of a layer of what has more than two dimensions."""

COPY: Final = "aten.copy_.default"
"""What writes at an index."""

UNTOLD: Final = frozenset({Kind.RUN, Kind.PURE_WIDE})
"""Kinds of operators of whose results a template does not say all."""

VIEWS: Final = frozenset({Kind.VIEW, Kind.VIEW_MANY})


class Captured(NamedTuple):
    """What was seen of one call.

    Attributes:
        inputs: The tensors among its arguments.
        returned: What it returned.
        rows: Entry and words of each operator it made.
        clock: Operators recorded before it.
        deaths: Pairs as in :class:`TensorRegistry`, of what was freed meanwhile.
    """

    inputs: Sequence[Tensor]
    returned: object
    rows: Sequence[tuple[Entry, Sequence[int]]]
    clock: int
    deaths: Sequence[int]


def learn(registry: TensorRegistry, captured: Captured) -> Template | None:
    """Return the template of a call that was watched, or None if it has none."""
    returned, inputs = captured.returned, captured.inputs
    if not captured.rows:
        is_same = bool(inputs) and returned is inputs[0]
        return Template(make_guard(inputs), is_same=True) if is_same else None
    template = Template(make_guard(inputs))
    if returned is None:
        return learn_write(registry, captured, template)
    kind = type(returned)
    is_many = kind in (tuple, list) or kind.__module__ == RETURN_TYPES
    template.container = kind if is_many else None
    tensors: Any = returned if is_many else (returned,)
    numbering = Numbering(registry, captured)
    if not all(numbering.add(*row) for row in captured.rows):
        return None
    template.is_native = is_native = all(
        entry.kind in VIEWS for entry, _ in captured.rows
    )
    outputs = [numbering.find_output(tensor, is_native=is_native) for tensor in tensors]
    found = tuple(output for output in outputs if output is not None)
    storages = {storage for _, storage, *_ in found}
    if not outputs or len(found) < len(outputs):
        return None
    if not is_native and len(storages) < len(outputs):
        return None
    template.outputs = found
    template.deaths = numbering.find_deaths(storages)
    numbering.fill(template)
    return template


def learn_write(
    registry: TensorRegistry, captured: Captured, template: Template
) -> Template | None:
    """Return the template of a call that copies to a part of its first argument."""
    *views, (copy, _) = captured.rows
    is_copy = copy.signature.op == COPY and copy.kind == Kind.IN_PLACE
    numbering = Numbering(registry, captured, can_write=True)
    if not is_copy or any(entry.kind != Kind.VIEW for entry, _ in views):
        return None
    if not all(numbering.add(*row) for row in captured.rows) or numbering.n_storages:
        return None
    template.container, template.outputs, template.deaths = None, (), ()
    template.is_native, template.is_write = False, True
    numbering.fill(template)
    return template


class Numbering:
    """Translates the numbers of one recording into those within one call.

    Attributes:
        entries: The signatures met, with their index.
        first_reads: For each argument read, the tensors made before.
        storages: As in :class:`Template`.
        n_storages: As in :class:`Template`.
    """

    def __init__(
        self, registry: TensorRegistry, captured: Captured, *, can_write: bool = False
    ) -> None:
        self._can_write = can_write
        self.entries: dict[Entry, int] = {}
        self.first_reads: dict[int, int] = {}
        self.storages: list[int] = []
        self._registry = registry
        self._captured = captured
        self._rows: list[tuple[int, list[int]]] = []
        self._index_by_tensor: dict[int, int] = {}
        self._index_by_storage: dict[int, int] = {}
        self.n_storages = 0
        for index, tensor in enumerate(captured.inputs):
            seen = registry.find(tensor)
            if seen is not None:  # else no operator read it
                self._index_by_tensor.setdefault(seen[0], index)
                storage = registry.storage_by_tensor[seen[0]]
                self._index_by_storage.setdefault(storage, ~index)

    def add(self, entry: Entry, words: Sequence[int]) -> bool:
        """Translate one row.

        Returns:
            False if the function reads a tensor that is neither an argument nor its
            own, or writes memory that is not its own, as through a view.
        """
        split = HEADER + len(entry.signature.inputs)
        reads = [self._index_by_tensor.get(number) for number in words[HEADER:split]]
        known = [index for index in reads if index is not None]
        if entry.kind in UNTOLD or len(known) < len(reads):
            return False
        storages = self._registry.storage_by_tensor
        written = (storages[words[HEADER + i]] for i in entry.signature.writes)
        own = (self._index_by_storage.get(storage, -1) >= 0 for storage in written)
        if not self._can_write and not all(own):
            return False
        for index in known:
            if index >= 0:
                self.first_reads.setdefault(index, len(self.storages))
        returned = [self._index_of_output(number) for number in words[split:]]
        number = self.entries.setdefault(entry, len(self.entries))
        self._rows.append((number, [*known, *returned]))
        return True

    def _index_of_output(self, number: int) -> int:
        """Return the index of a tensor that an operator returned, new or written."""
        index = self._index_by_tensor.get(number)
        if index is None:
            index = self._index_by_tensor[number] = ~len(self.storages)
            storage = self._registry.storage_by_tensor[number]
            if storage not in self._index_by_storage:
                self._index_by_storage[storage] = self.n_storages
                self.n_storages += 1
            self.storages.append(self._index_by_storage[storage])
        return index

    def fill(self, template: Template) -> None:
        """Say in a template what the rows are, and what they read and make."""
        template.entries = tuple(self.entries)
        template.pick = itemgetter(*self.find_picks())
        template.n_rows = len(self._rows)
        template.random_rows = self.find_random()
        template.first_reads = tuple(self.first_reads.items())
        template.storages = tuple(self.storages)
        template.n_storages = self.n_storages
        template.allowed = self.find_allowed()

    def find_picks(self) -> tuple[int, ...]:
        """Return where each word of the rows stands in the list described there."""
        place = len(self.entries)
        arguments = place + HEADER
        made = arguments + len(self._captured.inputs)
        picks: list[int] = []
        for number, indices in self._rows:
            picks += (number, place, place + 1, place + (3 if picks else 2))
            picks += (arguments + i if i >= 0 else made + ~i for i in indices)
        return tuple(picks)

    def find_allowed(self) -> tuple[tuple[int, Allowed], ...]:
        """Return what the arguments may hold that operators refuse otherwise."""
        entries = [*self.entries]
        return tuple(
            (indices[allowed.position], allowed)
            for number, indices in self._rows
            for allowed in entries[number].allowed
            if indices[allowed.position] >= 0
        )

    def find_random(self) -> tuple[Draw, ...]:
        """Return the rows that would draw from a generator."""
        entries = [entry for entry, _ in self._captured.rows]
        return tuple(
            (row, entries[row].drawn_on, indices)
            for row, (_, indices) in enumerate(self._rows)
            if entries[row].is_random
        )

    def find_output(self, tensor: object, *, is_native: bool) -> Output | None:
        """Return what is known of a tensor that a function returned.

        None if it is not new, or if it is neither made by torch (``is_native``) nor
        just what ``empty_strided`` would make, or a view of that.
        """
        seen = self._registry.find(tensor) if type(tensor) is Tensor else None
        if seen is None or not isinstance(tensor, Tensor):
            return None
        index = self._index_by_tensor.get(seen[0], 0)
        storage_number = self._registry.storage_by_tensor[seen[0]]
        storage = self._index_by_storage.get(storage_number, -1)
        if index >= 0 or not (is_native or storage >= 0):
            return None
        if is_native or is_plain(tensor, seen):
            return ~index, storage, seen[2], None
        viewed = self._find_viewed(tensor, index)
        return None if viewed is None else (~index, storage, seen[2], viewed)

    def _find_viewed(
        self, tensor: Tensor, index: int
    ) -> tuple[int, LiveGeometry] | None:
        """Return which tensor the last operator has viewed, just made, and how it is.

        None if it is anything else that was returned.
        """
        base = base_of(tensor)
        seen = None if base is None else self._registry.find(base)
        entry, words = self._captured.rows[-1]
        if base is None or seen is None or entry.signature.op != VIEW:
            return None
        viewed = self._index_by_tensor.get(seen[0], 0)
        is_last = self._rows[-1][1] == [viewed, index] and words[HEADER] == seen[0]
        return (~viewed, seen[2]) if is_last and is_plain(base, seen) else None

    def find_deaths(self, returned: set[int]) -> tuple[tuple[int, int], ...]:
        """Return when each storage dies that the call made and did not return."""
        pairs = zip(
            self._captured.deaths[::2], self._captured.deaths[1::2], strict=True
        )
        deaths = [
            (clock - self._captured.clock, self._index_by_storage[storage])
            for clock, storage in pairs
            if self._index_by_storage.get(storage, -1) >= 0
        ]
        dead = {storage for _, storage in deaths} | returned
        left = [s for s in range(self.n_storages) if s not in dead]
        return (*deaths, *((len(self._rows), s) for s in left))


def is_plain(tensor: Tensor, seen: Seen) -> bool:
    """Whether nothing tells a tensor from a new one of its geometry."""
    if is_view(tensor) or not (tensor.is_inference() or version_of(tensor) == 0):
        return False
    with DisableTorchDispatch():
        return seen[2].is_servable and is_as_empty_strided(tensor, seen)
