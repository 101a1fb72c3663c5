"""Find out what a plan leaves with content that no cell, run for real, would give it.

That is what lay in memory before, and what another generator was to draw.
"""

from collections.abc import Iterable
from math import prod

import numpy as np
import numpy.typing as npt

from meta_magic.replaying.program_calls import Call, is_dense, span_nbytes
from meta_magic.replaying.steps import Plan, StepKind
from meta_magic.trace.signature import Geometry

__all__ = ["find_drawn_elsewhere", "find_raw"]


def find_raw(plan: Plan, given: Iterable[int]) -> set[int]:
    """Return the storages of which some holds what lay in memory before.

    Args:
        plan: What is done.
        given: Storages that are so before the first step.
    """
    sizes = plan.recorded.nbytes_by_storage
    raw = {storage: RawMemory(sizes[storage]) for storage in (*plan.blank, *given)}
    for step in plan.steps:
        if step.kind != StepKind.DRAW:
            follow(step.call, raw, plan, is_made=step.kind == StepKind.ALLOCATE)
    return {s for s, memory in raw.items() if not memory.is_written}


def find_drawn_elsewhere(plan: Plan, given: Iterable[int]) -> set[int]:
    """Return the wanted storages that rest on what an accelerator was to draw.

    Args:
        plan: What is done.
        given: Storages that do so before the first step.
    """
    drawn = set(given)
    signatures = plan.recorded.program.signatures
    named = {g.place for s in signatures for g in (*s.inputs, *s.outputs)}
    if not drawn and named <= {None}:
        return drawn
    for step in plan.steps:
        call = step.call
        if step.kind != StepKind.RUN:
            continue
        is_planned = step.draw is not None and call.signature.accelerator is not None
        if is_planned or not drawn.isdisjoint(call.read):
            drawn.update(call.written, call.outputs)
            continue
        for index in call.overwritten:
            storage = call.inputs[index]
            if call.fills(index, plan.recorded.nbytes_by_storage[storage]):
                drawn.discard(storage)
    return drawn & plan.wanted


def follow(
    call: Call, raw: dict[int, "RawMemory"], plan: Plan, *, is_made: bool
) -> None:
    """Note what a call makes of raw memory.

    Args:
        call: The call.
        raw: The storages that are raw, in part at least.
        plan: The plan that it belongs to.
        is_made: Whether the call just makes memory.
    """
    sizes, births = plan.recorded.nbytes_by_storage, plan.recorded.births
    overwritten = call.overwritten
    made = zip(call.outputs, call.signature.outputs, strict=True)
    born = [(s, geometry) for s, geometry in made if births[s] == call.number]
    if is_made:  # what is held is there, and is left as it is
        born = [(s, geometry) for s, geometry in born if s not in plan.held]
    is_raw = is_made or any(s in raw and not raw[s].is_written for s in call.read)
    for index in call.signature.writes:
        storage = call.inputs[index]
        if is_raw:
            raw[storage] = RawMemory(sizes[storage])
        elif index in overwritten and storage in raw:
            signature = call.signature
            # As it is afterwards: out= may have grown.
            after = dict(zip(signature.views, signature.outputs, strict=True))
            raw[storage].write(after.get(index, signature.inputs[index]))
    if is_raw:
        for storage, geometry in born:
            raw[storage] = RawMemory(sizes[storage])
            if prod(geometry.shape) * geometry.dtype.itemsize < sizes[storage]:
                raw[storage].leave_out_gaps(geometry)


class RawMemory:
    """Memory without content, of which parts are written."""

    def __init__(self, nbytes: int) -> None:
        self._nbytes = nbytes
        self._is_byte_written: npt.NDArray[np.bool_] | None = None
        self._is_whole = nbytes == 0

    @property
    def is_written(self) -> bool:
        """Whether all of it is written."""
        if self._is_byte_written is not None and self._is_byte_written.all():
            self._is_byte_written, self._is_whole = None, True
        return self._is_whole

    def leave_out_gaps(self, geometry: Geometry) -> None:
        """Take what lies between the elements of the only tensor for written."""
        self._is_byte_written = np.ones(self._nbytes, np.bool_)
        self._mark(geometry, is_written=False)

    def write(self, geometry: Geometry) -> None:
        """Write the elements of a tensor."""
        is_whole = is_dense(geometry) and span_nbytes(geometry) == self._nbytes
        if is_whole or geometry.storage_offset is None:
            self._is_byte_written, self._is_whole = None, True
        elif not self._is_whole:
            if self._is_byte_written is None:
                self._is_byte_written = np.zeros(self._nbytes, np.bool_)
            self._mark(geometry, is_written=True)

    def _mark(self, geometry: Geometry, *, is_written: bool) -> None:
        stride, offset = geometry.stride, geometry.storage_offset
        bits, itemsize = self._is_byte_written, geometry.dtype.itemsize
        if bits is None or stride is None or offset is None or not prod(geometry.shape):
            return
        np.lib.stride_tricks.as_strided(
            bits[offset * itemsize :],
            (*geometry.shape, itemsize),
            (*(step * itemsize for step in stride), 1),
        )[...] = is_written
