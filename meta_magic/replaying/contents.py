"""What storages hold after a plan, besides their values.

- Which bytes are uninitialized, as in ``torch.empty(3).sum()`` (:func:`find_raw`,
  and :class:`RawTracker` where values decide what is written, as with masks).
- Whether random numbers would come from an accelerator (:func:`find_drawn_elsewhere`).
- Which call wrote them last, and whether they rest on assumed values
  (:func:`find_results`).
- Which live tensors depend on contents that a plan overwrites; they must be computed
  before (:func:`find_dependents`).
"""

from collections.abc import Callable, Mapping, Sequence
from heapq import heapify, heappop, heappush
from math import prod
from typing import Any, Final, NamedTuple

import numpy as np
import torch
from torch import Tensor

from meta_magic.errors import ReplayError
from meta_magic.replaying.kept import RawMemory
from meta_magic.replaying.operators import geometry_after
from meta_magic.replaying.program_calls import Call, ProgramCalls
from meta_magic.replaying.steps import Plan, Step, StepKind
from meta_magic.trace.program import AssumedNumbers
from meta_magic.trace.signature import COPIES

RESIZE: Final = "aten.resize_.default"


def find_raw(plan: Plan, given: Mapping[int, RawMemory]) -> dict[int, RawMemory]:
    """Return the storages that have uninitialized bytes after a plan."""
    raw = find_raw_before(plan, given)
    for step in plan.steps:
        is_made = step.kind == StepKind.ALLOCATE
        is_run = step.kind == StepKind.RUN
        if is_made or (is_run and not raw.keys().isdisjoint(step.call.inputs)):
            follow_call(step.call, raw, plan, is_made=is_made)
    return {s: memory for s, memory in raw.items() if not memory.is_written}


def find_raw_before(plan: Plan, given: Mapping[int, RawMemory]) -> dict[int, RawMemory]:
    """Return the storages that have uninitialized bytes before the first step."""
    sizes, kept = plan.recorded.nbytes_by_storage, plan.recorded.kept
    there = {**given, **(kept.find_raw(plan.held) if kept is not None else {})}
    raw = {storage: RawMemory(sizes[storage]) for storage in plan.blank}
    return raw | {s: memory.copy(sizes[s]) for s, memory in there.items()}


def find_raw_source(plan: Plan, raw: Mapping[int, RawMemory]) -> Call | None:
    """Return the first call that allocated uninitialized memory of wanted storages."""
    followed = raw.keys() & plan.wanted
    for step in reversed(plan.steps):
        if not followed.isdisjoint({*step.call.outputs, *step.call.written}):
            followed |= raw.keys() & step.call.read
    recorded = plan.recorded
    births = [recorded.births[s] for s in followed if recorded.births[s] >= 0]
    return recorded.call(min(births)) if births else None


def find_drawn_elsewhere(plan: Plan, given: Mapping[int, None]) -> dict[int, None]:
    """Return the storages that rest on draws of an accelerator (as keys)."""
    drawn = set(given)
    signatures = plan.recorded.program.signatures
    named = {g.placement for s in signatures for g in (*s.inputs, *s.outputs)}
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
        for index in call.usage.overwritten:
            storage = call.inputs[index]
            if call.fills(index, plan.recorded.nbytes_by_storage[storage]):
                drawn.discard(storage)
    return dict.fromkeys(drawn & plan.wanted)


def follow_call(
    call: Call, raw: dict[int, RawMemory], plan: Plan, *, is_made: bool
) -> None:
    """Update the uninitialized bytes by one call, which may only allocate."""
    sizes, signature = plan.recorded.nbytes_by_storage, call.signature
    is_tainted = not is_made and reads_raw(call, raw)
    if is_tainted and call.operator.name in (COPY, *COPIES):
        copy_raw(call, raw, sizes)
        return
    for index in signature.writes:
        storage = call.inputs[index]
        geometry = geometry_after(signature, index)
        if is_made:
            raw[storage] = RawMemory(sizes[storage])
        elif is_tainted:
            memory = raw.setdefault(storage, RawMemory(sizes[storage], is_written=True))
            memory.is_tainted = True  # its values are those of uninitialized elements
            memory.erase(geometry)
        elif index in call.usage.overwritten and storage in raw:
            raw[storage].write(geometry)
    if call.operator.partly_written and not is_tainted and call.outputs[0] in raw:
        raw[call.outputs[0]].write(signature.outputs[0])
    if is_made or is_tainted:
        raw |= make_raw(call, plan, is_tainted=is_tainted)


def copy_raw(call: Call, raw: dict[int, RawMemory], sizes: Sequence[int]) -> None:
    """Follow a copy of uninitialized elements: ``torch.empty(3).to(device)``."""
    signature = call.signature
    if call.operator.name == COPY:
        (to, source), (geometry, copied) = call.inputs, signature.inputs
    else:
        (to,), (source,) = call.outputs, call.inputs
        (geometry,), (copied,) = signature.outputs, signature.inputs
    memory = raw.setdefault(to, RawMemory(sizes[to], is_written=True))
    memory.is_tainted |= raw[source].is_tainted
    memory.erase(geometry)
    if not raw[source].is_blank:
        which = raw[source].find_written(copied)
        memory.write_some(geometry, np.broadcast_to(which, geometry.shape))


def make_raw(call: Call, plan: Plan, *, is_tainted: bool) -> dict[int, RawMemory]:
    """Return the new storages of a call, as uninitialized memory."""
    sizes, births = plan.recorded.nbytes_by_storage, plan.recorded.births
    found = {}
    for storage, geometry in zip(call.outputs, call.signature.outputs, strict=True):
        # A kept content stays as it is.
        is_held = storage in plan.held and not is_tainted
        if births[storage] == call.number and not is_held:
            # The gaps between the elements of a tensor are never read.
            nbytes = sizes[storage]
            has_gaps = prod(geometry.shape) * geometry.dtype.itemsize < nbytes
            memory = RawMemory(nbytes, is_written=has_gaps, is_tainted=is_tainted)
            found[storage] = memory
            if has_gaps:
                memory.erase(geometry)
    return found


def reads_raw(
    call: Call, raw: Mapping[int, RawMemory], *, but_first: bool = False
) -> bool:
    """Whether a call reads an uninitialized element, in its first tensor or another."""
    if call.operator.name == RESIZE:  # it moves the old bytes only
        return False
    positions = [i for i in call.usage.read if i or not but_first]
    read = ((call.inputs[i], call.signature.inputs[i]) for i in positions)
    return any(s in raw and not raw[s].holds(geometry) for s, geometry in read)


COPY: Final = "aten.copy_.default"
WHERE: Final = "aten.where.self"

Given = Mapping[str, Any]
Mark = Callable[[Tensor, Given], object]


MARK_BY_NAMES: Final[tuple[tuple[str, Mark], ...]] = (
    (
        "index_copy_.default index_fill_.int_Scalar index_fill_.int_Tensor",
        lambda which, given: which.index_fill_(
            given["dim"], given["index"], value=True
        ),
    ),
    (
        "index_put_.default _index_put_impl_.default",
        lambda which, given: torch.ops.aten.index_put_(
            which, given["indices"], torch.tensor(data=True)
        ),
    ),
    (
        "masked_fill_.Scalar masked_fill_.Tensor masked_scatter_.default",
        lambda which, given: which.masked_fill_(given["mask"], value=True),
    ),
    (
        "scatter_.src scatter_.value",
        lambda which, given: which.scatter_(given["dim"], given["index"], value=True),
    ),
)
MARKS: Final = {
    f"aten.{name}": mark for names, mark in MARK_BY_NAMES for name in names.split()
}
"""By the operator's name, a function that marks which elements the operator writes."""


def has_partial_writes(plan: Plan) -> bool:
    """Whether values decide which elements a plan writes, as an index or mask does."""
    names = {step.call.operator.name for step in plan.steps}
    return WHERE in names or not names.isdisjoint(MARKS)


class RawTracker:
    """Tracks uninitialized bytes while a plan runs, where values decide."""

    def __init__(self, plan: Plan, raw: dict[int, RawMemory]) -> None:
        self._plan = plan
        self.raw = raw

    def check(self, step: Step, read: Callable[[Call], Sequence[Tensor]]) -> None:
        """Track the next step before it runs; refuse uninitialized elements."""
        call, raw, plan = step.call, self.raw, self._plan
        if step.kind == StepKind.DRAW:
            return
        is_marked = call.operator.name in MARKS and call.inputs[0] in raw
        adds = dict(call.signature.arguments).get("accumulate")
        mark = MARKS[call.operator.name] if is_marked and not adds else None
        if call.operator.name == WHERE and call.inputs[0] not in raw:
            self._choose(call, read(call)[0])
            return
        if (
            step.kind == StepKind.RUN
            and call.operator.name not in (COPY, *COPIES)
            and reads_raw(call, raw, but_first=mark is not None)
        ):
            raise ReplayError(
                "nothing was written to some of what it comes from, which "
                f"{plan.recorded.describe(call)} reads"
            )
        if step.kind == StepKind.ALLOCATE or mark is None:
            follow_call(call, raw, plan, is_made=step.kind == StepKind.ALLOCATE)
            return
        geometry = call.signature.inputs[0]
        given = call.usage.arguments.fill(read(call), torch.device("cpu"))
        which = torch.zeros(geometry.shape, dtype=torch.bool, device="cpu")
        mark(which, given)
        raw[call.inputs[0]].write_some(geometry, which.numpy())

    def _choose(self, call: Call, condition: Tensor) -> None:
        """Follow ``where``, which takes each element from one of two tensors."""
        raw, (storage,), (made,) = self.raw, call.outputs, call.signature.outputs
        whole = RawMemory(0, is_written=True)
        pairs = zip(call.inputs, call.signature.inputs, strict=True)
        _, chosen, other = [raw.get(s, whole).find_written(g) for s, g in pairs]
        here, there = map(torch.from_numpy, (chosen, other))
        which = torch.where(condition, here, there)
        if not which.all():
            raw[storage] = RawMemory(self._plan.recorded.nbytes_by_storage[storage])
            raw[storage].write_some(made, which.numpy())


class Result(NamedTuple):
    """Where the content of a storage comes from."""

    last_call: int
    is_assumed: bool


def find_results(plan: Plan, given: Mapping[int, Result]) -> dict[int, Result]:
    """Return where the contents come from that storages have after a plan."""
    recorded, kept, births = plan.recorded, plan.recorded.kept, plan.recorded.births
    assumptions = {a.call for a in recorded.program.assumptions}
    numbers = AssumedNumbers(recorded.program)
    assumed = {storage for storage, result in given.items() if result.is_assumed}
    results = {s: Result(-1, s in assumed) for s in plan.given}
    for storage, last_call in plan.held.items():
        is_assumed = kept is not None and kept.is_assumed(storage)
        results[storage] = Result(last_call, is_assumed)
    can_rest = bool(assumptions) or any(r.is_assumed for r in results.values())
    for step in plan.steps:
        if step.kind != StepKind.RUN:
            continue
        call = step.call
        is_assumed = can_rest and (
            call.number in assumptions
            or numbers.may_be_in(call.number, call.signature)
            or any(results[s].is_assumed for s in call.read if s in results)
        )
        result = Result(call.number, is_assumed)
        for storage in call.outputs:
            if births[storage] == call.number and storage not in plan.held:
                results[storage] = result
        for storage in call.written:
            was_assumed = storage in results and results[storage].is_assumed
            results[storage] = result._replace(is_assumed=was_assumed or is_assumed)
    return results


def find_outdated(recorded: ProgramCalls) -> set[int]:
    """Return the storages that were written after their content was kept."""
    kept = recorded.kept
    known = {} if kept is None else kept.list_contents(can_assume=True)
    find_last, end = recorded.writers.find_last, len(recorded)
    outdated = {s for s, last in known.items() if find_last(s, end) > last}
    return outdated - recorded.dead


def find_dependents(plan: Plan) -> set[int]:
    """Return the live storages that depend on contents which a plan overwrites.

    The kept content of ``w`` is gone after ``w.sub_(g)`` is replayed; a live ``y`` that
    was computed from the old ``w`` would need all calls since the beginning. What the
    plan makes anyway is left out.
    """
    recorded, dead = plan.recorded, plan.recorded.dead
    made = {step.call.number for step in plan.steps if step.kind == StepKind.RUN}
    readers, end = recorded.readers, len(recorded) - 1
    readers.update()
    changed = find_changed(plan).items()
    waiting = [
        i for s, (first, last) in changed for i in readers.between(s, first, last)
    ]
    heapify(waiting)
    found: set[int] = set()
    now = -1
    while waiting:
        index = heappop(waiting)
        if index == now:
            continue
        now = index
        # The plan keeps what it makes, unless the storage is dead.
        fresh = recorded.changed_by(index) - found
        if index in made:
            fresh &= dead
        found |= fresh
        for storage in fresh:
            for later in readers.between(storage, index + 1, end):
                heappush(waiting, later)
    return found - dead


def find_changed(plan: Plan) -> dict[int, tuple[int, int]]:
    """Return the first and the last call that overwrite each storage of a plan."""
    recorded, kept = plan.recorded, plan.recorded.kept
    first = {} if kept is None else kept.list_contents(can_assume=True)
    found = {}
    for storage in plan.retained | first.keys():
        last = recorded.writers.find_last(storage, len(recorded))
        begin = first.get(storage, recorded.births[storage])
        if storage in recorded.dead:
            found[storage] = begin + 1, len(recorded) - 1
        elif last > begin:
            found[storage] = begin + 1, last
    return found
