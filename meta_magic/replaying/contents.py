"""Find out what a plan leaves with content that no cell, run for real, would give it.

That is what lay in memory before, and what another generator was to draw.
"""

from collections.abc import Mapping
from math import prod
from typing import Final

from meta_magic.replaying.program_calls import Call
from meta_magic.replaying.raw_memory import RawMemory
from meta_magic.replaying.steps import Plan, StepKind
from meta_magic.replaying.usage import geometry_after

__all__ = [
    "find_drawn_elsewhere",
    "find_raw",
    "find_raw_before",
    "find_raw_source",
    "follow",
    "reads_raw",
]

RESIZE: Final = "aten.resize_.default"


def find_raw(plan: Plan, given: Mapping[int, RawMemory]) -> dict[int, RawMemory]:
    """Return the storages of which some holds what lay in memory before.

    Args:
        plan: What is done.
        given: Storages that are so before the first step, as earlier ones left them.
    """
    raw = find_raw_before(plan, given)
    for step in plan.steps:
        is_made = step.kind == StepKind.ALLOCATE
        is_run = step.kind == StepKind.RUN
        if is_made or (is_run and not raw.keys().isdisjoint(step.call.inputs)):
            follow(step.call, raw, plan, is_made=is_made)
    return {s: memory for s, memory in raw.items() if not memory.is_written}


def find_raw_before(plan: Plan, given: Mapping[int, RawMemory]) -> dict[int, RawMemory]:
    """Return the storages that are so before the first step."""
    sizes, kept = plan.recorded.nbytes_by_storage, plan.recorded.kept
    there = {**given, **(kept.find_raw(plan.held) if kept is not None else {})}
    raw = {storage: RawMemory(sizes[storage]) for storage in plan.blank}
    return raw | {s: memory.copy(sizes[s]) for s, memory in there.items()}


def find_raw_source(plan: Plan, raw: Mapping[int, RawMemory]) -> Call | None:
    """Return the first call that made memory from which wanted storages come.

    Args:
        plan: What is done.
        raw: The storages of which it leaves some as it lay in memory.
    """
    followed = raw.keys() & plan.wanted
    for step in reversed(plan.steps):
        if not followed.isdisjoint({*step.call.outputs, *step.call.written}):
            followed |= raw.keys() & step.call.read
    recorded = plan.recorded
    births = [recorded.births[s] for s in followed if recorded.births[s] >= 0]
    return recorded.call(min(births)) if births else None


def find_drawn_elsewhere(plan: Plan, given: Mapping[int, None]) -> dict[int, None]:
    """Return the wanted storages that rest on what an accelerator was to draw.

    Args:
        plan: What is done.
        given: Storages that do so before the first step.
    """
    drawn = set(given)
    signatures = plan.recorded.program.signatures
    named = {g.place for s in signatures for g in (*s.inputs, *s.outputs)}
    if not drawn and named <= {None}:
        return dict.fromkeys(drawn)
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
    return dict.fromkeys(drawn & plan.wanted)


def follow(call: Call, raw: dict[int, RawMemory], plan: Plan, *, is_made: bool) -> None:
    """Note what a call makes of raw memory.

    Args:
        call: The call.
        raw: The storages that are raw, in part at least.
        plan: The plan that it belongs to.
        is_made: Whether the call just makes memory.
    """
    sizes, signature = plan.recorded.nbytes_by_storage, call.signature
    is_tainted = not is_made and reads_raw(call, raw)
    for index in signature.writes:
        storage = call.inputs[index]
        geometry = geometry_after(signature, index)
        if is_made:
            raw[storage] = RawMemory(sizes[storage])
        elif is_tainted:
            memory = raw.setdefault(storage, RawMemory(sizes[storage], is_written=True))
            memory.taint(geometry)
        elif index in call.overwritten and storage in raw:
            raw[storage].write(geometry)
    if is_made or is_tainted:
        raw |= make_raw(call, plan, is_tainted=is_tainted)


def make_raw(call: Call, plan: Plan, *, is_tainted: bool) -> dict[int, RawMemory]:
    """Return the memory that a call makes and of which nothing is written.

    Args:
        call: The call.
        plan: The plan that it belongs to.
        is_tainted: Whether it holds what was computed from what lay in memory.
    """
    sizes, births = plan.recorded.nbytes_by_storage, plan.recorded.births
    found = {}
    for storage, geometry in zip(call.outputs, call.signature.outputs, strict=True):
        # What is held is there, and is left as it is.
        is_held = storage in plan.held and not is_tainted
        if births[storage] == call.number and not is_held:
            found[storage] = RawMemory(sizes[storage], is_tainted=is_tainted)
            if prod(geometry.shape) * geometry.dtype.itemsize < sizes[storage]:
                found[storage].leave_out_gaps(geometry)
    return found


def reads_raw(
    call: Call, raw: Mapping[int, RawMemory], *, but_first: bool = False
) -> bool:
    """Whether a call reads an element that nothing wrote.

    Args:
        call: The call.
        raw: The storages that are raw, in part at least.
        but_first: Whether its first tensor is not asked about.
    """
    if call.operator.name == RESIZE:  # which leaves what is there
        return False
    positions = [i for i in call.usage.read if i or not but_first]
    read = ((call.inputs[i], call.signature.inputs[i]) for i in positions)
    return any(s in raw and not raw[s].holds(geometry) for s, geometry in read)
