"""A program as numpy columns: of its calls, and of the tensors that they read and make.

Memory and cost are computed on whole columns, not call by call. What all calls of a
signature share is worked out once, in a table of its slots: the tensors that it reads,
then those that it returns. Read :class:`Columns` and ``read_columns`` first.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Final, TypeAlias, get_args

import numpy as np
import torch
from numpy.typing import NDArray

from meta_magic.trace.program import GOES_ON, HEADER, MODULE_HEADER, TIED, Program
from meta_magic.trace.signature import Geometry, Phase, Signature, span_nbytes

Integers: TypeAlias = NDArray[np.int64]
Flags: TypeAlias = NDArray[np.bool_]
PHASES: Final[tuple[Phase, ...]] = get_args(Phase)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Columns:
    """Columns with an entry for each call, then columns with one for each tensor.

    -1 stands for none. A call that has no module of its own, being a backward call
    outside of modules, has the module of its forward call.

    Attributes:
        phase: The index of its phase in ``PHASES``.
        goes_on: Whether its torch function made the operator before, too.
        first: The start of its tensors in the columns below; at the end the number of
            all tensors.
        call: The call that reads or returns the tensor.
        slot: Its slot, counted over all signatures.
        nbytes: The bytes of a storage that just holds it.
        is_made: Whether it is returned.
        is_written: Whether it is an input that is written.
        location: The index into ``locations`` of its device.
        locations: Devices that the code names; None first, for no named device.
    """

    n_calls: int
    n_storages: int
    signature: Integers
    call_site: Integers
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
        """Return the module of each call, as in ``OpCall.module``; -1 for none.

        It is the module in which the call ran. Outside of module calls it is the owner
        of the first tensor that the call makes, or else writes.
        """
        module = self.module.copy()
        holder_by_storage = np.full(self.n_storages, -1)
        for storage, number in program.owner_by_storage:
            holder_by_storage[storage] = number
        holder = holder_by_storage[self.storage]
        is_held = (holder >= 0) & (self.module_call < 0)[self.call]
        for is_meant in (self.is_written, self.is_made):  # later entries win
            # If one entry is assigned several times, the last number stays.
            tensors = np.flatnonzero(is_held & is_meant)[::-1]
            module[self.call[tensors]] = holder[tensors]
        return module


def read_columns(program: Program) -> Columns:
    """Return the columns of a program."""
    words = np.frombuffer(program.words, np.uint32)
    offsets = np.frombuffer(program.offsets, np.uint32).astype(np.int64)
    starts, n_calls = offsets[:-1], len(offsets) - 1
    header = words[starts + np.arange(HEADER)[:, None]].astype(np.int64)
    signature, call_site, module_word, last = header
    first = offsets - HEADER * np.arange(n_calls + 1)
    call = np.repeat(np.arange(n_calls), np.diff(first))
    position = np.arange(len(call))
    storages = np.frombuffer(program.storage_by_tensor, np.uint32)
    slots = SlotTable(program.signatures)
    slot = position + (slots.first[signature] - first[:-1])[call]
    tensor = words[position + HEADER * (call + 1)]
    forward = np.where(last >= TIED, last - TIED, -1)
    # A backward call has the module word of its forward call.
    is_tied = (module_word == 0) & (forward >= 0)
    module_word = np.where(is_tied, module_word[forward], module_word)
    return Columns(
        n_calls=n_calls,
        n_storages=count_storages(program),
        signature=signature,
        call_site=call_site - 1,
        phase=find_phases(program)[call_site - 1],
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
    """Return the largest number of a storage in a program, plus one."""
    deaths = np.frombuffer(program.deaths, np.uint32)[1::2]
    seen = np.frombuffer(program.storage_by_tensor, np.uint32)
    sized = [storage for _, storage, _ in program.facts.sizes]
    sized += [storage for storage, _ in program.nbytes_by_storage]
    last = (deaths.max(initial=0), seen.max(initial=0), max(sized, default=0))
    return int(max(last)) + 1


class SlotTable:
    """The slots of all signatures, one after the other; fields as in ``Columns``."""

    def __init__(self, signatures: tuple[Signature, ...]) -> None:
        self.locations: dict[str | None, int] = {None: 0}
        first: list[int] = []
        nbytes: list[int] = []
        names: list[str | None] = []
        is_made: list[bool] = []
        written: list[int] = []
        for signature in signatures:
            first.append(len(nbytes))
            written += [len(nbytes) + index for index in signature.writes]
            slots = (*signature.inputs, *signature.outputs)
            nbytes += map(hold_nbytes, slots)
            names += map(name_location, slots)
            kept = KEPT[signature.op](signature) if signature.op in KEPT else []
            start = first[-1] + len(signature.inputs)
            nbytes[start : start + len(kept)] = kept
            is_made += [False] * len(signature.inputs)
            is_made += [True] * len(signature.outputs)
        numbers = [self.locations.setdefault(n, len(self.locations)) for n in names]
        self.first = np.asarray(first, np.int64)
        self.nbytes = np.asarray(nbytes, np.int64)
        self.location = np.asarray(numbers, np.int64)
        self.is_made = np.asarray(is_made, np.bool_)
        self.is_written = np.zeros_like(self.is_made)
        self.is_written[written] = True


def name_location(geometry: Geometry) -> str | None:
    """Return the device that the code names for a tensor; None for none."""
    is_real = geometry.device.type != "meta"
    where = geometry.device if is_real else geometry.placement
    return None if where is None else str(where)


def hold_nbytes(geometry: Geometry) -> int:
    """Return the bytes of the smallest storage that can hold a tensor.

    0 for a layout without strides: its parts are tensors themselves.
    """
    if geometry.stride is None or geometry.storage_offset is None:
        return 0
    if 0 in geometry.shape:
        return geometry.storage_offset * geometry.dtype.itemsize
    return span_nbytes(geometry)


def find_phases(program: Program) -> Integers:
    """Return the phase of each call site, and at the end that of no call site."""
    phases = [PHASES.index(site.phase) for site in program.call_sites]
    return np.asarray([*phases, PHASES.index("other")], np.int64)


def find_modules(program: Program, words: Integers) -> Integers:
    """Return the module in each module word; -1 for none."""
    rows = np.frombuffer(program.module_rows, np.uint32).astype(np.int64)
    called = np.append(rows[::MODULE_HEADER], -1)  # the last is for no module call
    is_built = words & 1 == 1
    return np.where(is_built, words >> 1, called[np.where(is_built, 0, words >> 1) - 1])


Keep: TypeAlias = Callable[[Signature], Sequence[int]]
"""Returns the bytes of the storage of each output of a signature."""


def keep_elements(signature: Signature) -> Sequence[int]:
    """Return the bytes of a loss before it is reduced.

    The kernel computes the loss of each element in the storage of the result and then
    makes the result smaller: the storage keeps its size.

    Source:
        ``BinaryOps.cpp`` and ``Loss.cpp`` of torch 2.13: ``resize_`` of the output. Of
        torch's operator database no others differ.
    """
    first, second = signature.inputs[:2]
    shape = torch.broadcast_shapes(first.shape, second.shape)
    return [prod(shape) * made.dtype.itemsize for made in signature.outputs]


def keep_ends(signature: Signature) -> Sequence[int]:
    """Return the bytes of a bag of embeddings: the bag of each element, and an end.

    On CUDA there is no end: eight bytes less.

    Source:
        ``EmbeddingBag.cpp`` of torch 2.13.
    """
    made = signature.outputs
    nbytes = [prod(g.shape) * g.dtype.itemsize for g in made[:2]]
    return [nbytes[0], nbytes[1] and nbytes[1] + made[1].dtype.itemsize]


KEPT: Final[Mapping[str, Keep]] = {
    "aten.mse_loss.default": keep_elements,
    "aten.smooth_l1_loss.default": keep_elements,
    "aten.binary_cross_entropy.default": keep_elements,
    "aten.soft_margin_loss.default": keep_elements,
    "aten._embedding_bag.default": keep_ends,
}
"""Operators whose CPU kernel returns a result on a larger storage than on meta."""
