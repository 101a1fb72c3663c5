"""A program as numpy columns: of its calls, and of the tensors that they read and make.

Memory and cost are computed on whole columns, not call by call. What all calls of a
signature share is worked out once, in a table of its slots: the tensors that it reads,
then those that it returns. Read :class:`Columns` and ``read_columns`` first.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from types import MappingProxyType
from typing import Final, TypeAlias, get_args

import numpy as np
import torch
from numpy.typing import NDArray

from meta_magic.trace.program import GOES_ON, HEADER, MODULE_HEADER, TIED, Program
from meta_magic.trace.signature import Geometry, Phase, Signature

Integers: TypeAlias = NDArray[np.int64]
Flags: TypeAlias = NDArray[np.bool_]

PHASES: Final[tuple[Phase, ...]] = get_args(Phase)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Columns:
    """The words of a program.

    Attributes:
        n_calls: Operator calls.
        n_storages: Storages.
        signature: Of each call its signature.
        place: Of each call its place in the source; -1 for none.
        phase: Of each call the index of its phase in ``PHASES``.
        forward: Of each backward call its forward call; -1 for others.
        goes_on: Of each call whether the same call of a torch function made the one
            before.
        module: Of each call the number of the module that it ran in; -1 for none. A
            backward call outside of modules belongs to that of its forward call.
        module_call: Of each call the module call that it ran in; -1 for none, as
            while a module is built.
        first: Of each call where its tensors begin in the columns below, and at last
            how many there are.
        call: Of each tensor the call.
        slot: Of each tensor its slot, counted over all signatures.
        tensor: Of each tensor its number.
        storage: Of each tensor its storage.
        nbytes: Of each tensor the bytes that its storage has, if it is first met so.
        is_made: Of each tensor whether it is returned, and not read.
        is_written: Of each tensor whether it is read, and written.
        location: Of each tensor the index into ``locations`` of where it lies.
        locations: Devices that the code names; None first, for those that it does not.
    """

    n_calls: int
    n_storages: int
    signature: Integers
    place: Integers
    phase: Integers
    forward: Integers
    goes_on: Flags
    module: Integers
    module_call: Integers
    first: Integers
    call: Integers
    slot: Integers
    tensor: NDArray[np.uint32]
    storage: Integers
    nbytes: Integers
    is_made: Flags
    is_written: Flags
    location: Integers
    locations: tuple[str | None, ...]

    def find_holders(self, program: Program) -> Integers:
        """Return the module that each call belongs to, as ``OpCall.module``; or -1.

        That which it ran in; outside of module calls, that which holds the first of
        what it makes, or else of what it writes, if one does.
        """
        module = self.module.copy()
        holder_by_storage = np.full(self.n_storages, -1)
        for storage, number in program.owner_by_storage:
            holder_by_storage[storage] = number
        holder = holder_by_storage[self.storage]
        is_held = (holder >= 0) & (self.module_call < 0)[self.call]
        for is_meant in (self.is_written, self.is_made):  # what is made comes last
            # Of several numbers written to one place the last one stays.
            tensors = np.flatnonzero(is_held & is_meant)[::-1]
            module[self.call[tensors]] = holder[tensors]
        return module


def read_columns(program: Program) -> Columns:
    """Return the columns of a program."""
    words = np.frombuffer(program.words, np.uint32)
    offsets = np.frombuffer(program.offsets, np.uint32).astype(np.int64)
    starts, n_calls = offsets[:-1], len(offsets) - 1
    header = words[starts + np.arange(HEADER)[:, None]].astype(np.int64)
    signature, place, module_word, last = header
    first = offsets - HEADER * np.arange(n_calls + 1)
    call = np.repeat(np.arange(n_calls), np.diff(first))
    position = np.arange(len(call))
    storages = np.frombuffer(program.storage_by_tensor, np.uint32)
    slots = SlotTable(program.signatures)
    slot = position + (slots.first[signature] - first[:-1])[call]
    tensor = words[position + HEADER * (call + 1)]
    forward = np.where(last >= TIED, last - TIED, -1)
    module_word = find_module_words(module_word, forward)
    return Columns(
        n_calls=n_calls,
        n_storages=count_storages(program),
        signature=signature,
        place=place - 1,
        phase=find_phases(program)[place - 1],
        forward=forward,
        goes_on=last == GOES_ON,
        module=find_modules(program, module_word),
        module_call=np.where(module_word & 1, -1, (module_word >> 1) - 1),
        first=first,
        call=call,
        slot=slot,
        tensor=tensor,
        storage=storages[tensor].astype(np.int64),
        nbytes=slots.nbytes[slot],
        is_made=slots.is_made[slot],
        is_written=slots.is_written[slot],
        location=slots.location[slot],
        locations=tuple(slots.locations),
    )


def count_storages(program: Program) -> int:
    """Return how many storages were numbered, of those that anything is known of."""
    deaths = np.frombuffer(program.deaths, np.uint32)[1::2]
    met = np.frombuffer(program.storage_by_tensor, np.uint32)
    sized = [storage for _, storage, _ in program.facts.sizes]
    sized += [storage for storage, _ in program.nbytes_by_storage]
    last = (deaths.max(initial=0), met.max(initial=0), max(sized, default=0))
    return int(max(last)) + 1


class SlotTable:
    """The slots of all signatures, one after the other.

    Attributes:
        first: Of each signature its first slot.
        nbytes: Of each slot the bytes of a storage that is just as large as needed.
        is_made: Of each slot whether its tensor is returned.
        is_written: Of each slot whether its tensor is read, and written.
        location: Of each slot the index of where its tensor lies.
        locations: What these point to.
    """

    def __init__(self, signatures: tuple[Signature, ...]) -> None:
        self.locations: dict[str | None, int] = {None: 0}
        self._known: dict[int, tuple[int, int]] = {}  # by the id of a geometry
        first: list[int] = []
        facts: list[tuple[int, int]] = []
        is_made: list[bool] = []
        written: list[int] = []
        for signature in signatures:
            first.append(len(facts))
            written += [len(facts) + index for index in signature.writes]
            facts += self._describe(signature)
            is_made += [False] * len(signature.inputs)
            is_made += [True] * len(signature.outputs)
        pairs = np.asarray(facts, np.int64).reshape(-1, 2)
        self.first = np.asarray(first, np.int64)
        self.nbytes, self.location = pairs[:, 0], pairs[:, 1]
        self.is_made = np.asarray(is_made, np.bool_)
        self.is_written = np.zeros_like(self.is_made)
        self.is_written[written] = True

    def _describe(self, signature: Signature) -> Iterator[tuple[int, int]]:
        """Yield bytes and location of each slot of a signature."""
        keep = KEPT.get(signature.op)
        kept = () if keep is None else keep(signature)
        yield from map(self._describe_geometry, signature.inputs)
        for index, geometry in enumerate(signature.outputs):
            nbytes, location = self._describe_geometry(geometry)
            yield kept[index] if index < len(kept) else nbytes, location

    def _describe_geometry(self, geometry: Geometry) -> tuple[int, int]:
        found = self._known.get(id(geometry))
        if found is None:
            where = geometry.place
            if geometry.device.type != "meta":
                where = geometry.device
            name = None if where is None else str(where)
            number = self.locations.setdefault(name, len(self.locations))
            found = self._known[id(geometry)] = (hold_nbytes(geometry), number)
        return found


def hold_nbytes(geometry: Geometry) -> int:
    """Return the bytes of a storage on which a tensor just fits.

    None for a layout without strides: what it consists of are tensors themselves.
    """
    if geometry.stride is None or geometry.storage_offset is None:
        return 0
    last = -1
    if 0 not in geometry.shape:
        pairs = zip(geometry.shape, geometry.stride, strict=True)
        last = sum((n - 1) * step for n, step in pairs)
    return (geometry.storage_offset + last + 1) * geometry.dtype.itemsize


def find_phases(program: Program) -> Integers:
    """Return the phase of each place, and at last that of no place."""
    phases = [PHASES.index(place.phase) for place in program.places]
    return np.asarray([*phases, PHASES.index("other")], np.int64)


def find_module_words(words: Integers, forward: Integers) -> Integers:
    """Return the module word of each call, for a backward one that of its forward."""
    is_tied = (words == 0) & (forward >= 0)
    return np.where(is_tied, words[forward], words)


def find_modules(program: Program, words: Integers) -> Integers:
    """Return the module that each call ran in, by its module word."""
    rows = np.frombuffer(program.module_rows, np.uint32).astype(np.int64)
    called = np.append(rows[::MODULE_HEADER], -1)  # the last for calls in none
    is_built = words & 1 == 1
    return np.where(is_built, words >> 1, called[np.where(is_built, 0, words >> 1) - 1])


Keep: TypeAlias = Callable[[Signature], Sequence[int]]
"""Returns the bytes of the storages of what a signature returns."""


def keep_elements(signature: Signature) -> Sequence[int]:
    """Return the bytes of one result for each element of both operands."""
    first, second = signature.inputs[:2]
    shape = torch.broadcast_shapes(first.shape, second.shape)
    return [prod(shape) * made.dtype.itemsize for made in signature.outputs]


def keep_ends(signature: Signature) -> Sequence[int]:
    """Return the bytes of a bag of embeddings: of each element its bag, and an end.

    On CUDA there is no end: eight bytes less.
    """
    made = signature.outputs
    nbytes = [prod(g.shape) * g.dtype.itemsize for g in made[:2]]
    return [nbytes[0], nbytes[1] and nbytes[1] + made[1].dtype.itemsize]


KEPT: Final[Mapping[str, Keep]] = MappingProxyType(
    {
        "aten.mse_loss.default": keep_elements,
        "aten.smooth_l1_loss.default": keep_elements,
        "aten.binary_cross_entropy.default": keep_elements,
        "aten.soft_margin_loss.default": keep_elements,
        "aten._embedding_bag.default": keep_ends,
    }
)
"""By operator."""
