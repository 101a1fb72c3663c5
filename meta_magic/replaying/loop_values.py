"""Decide when the calls of a recording are run forward, instead of planned.

Counting pairs in a Python loop is 200,000 calls, which a plan visits one by one;
``loss.item()`` in each step needs one plan for each. :class:`ForwardReplay` is faster
for both. Read :meth:`LoopValues.run_new_calls` first.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final, TypeAlias, cast

import numpy as np
import torch
from torch import Tensor, UntypedStorage

from meta_magic.errors import MissingValueError, ReplayError
from meta_magic.replaying.call_runner import allocate, needs_flags
from meta_magic.replaying.contents import find_outdated
from meta_magic.replaying.execution import Execution
from meta_magic.replaying.forward_replay import (
    N_AT_ONCE,
    ForwardReplay,
    ReplayColumns,
    columns_of,
)
from meta_magic.replaying.kept import Content
from meta_magic.replaying.program_calls import ProgramCalls, read_rows
from meta_magic.replaying.steps import Request
from meta_magic.replaying.value_budget import ValueBudget
from meta_magic.trace.options import ValueLimits
from meta_magic.trace.program import Program
from meta_magic.trace.program_facts import Evaluation
from meta_magic.trace.signature import CPU, Geometry

MIN_CALLS: Final = 2**12
"""So many calls without a value between them may be a loop."""

CHUNK_SECONDS: Final = N_AT_ONCE * 5e-6
"""About how long ``N_AT_ONCE`` calls take."""

MIN_REPEATS: Final = 4
"""Calls of a loop per signature, on average."""

MIN_KNOWN: Final = 50
"""Calls are run forward if at most one in so many cannot be run so. What such a call
changes, and all that depends on it, is dropped; a plan makes it when it is wanted."""

MAX_HELD_NBYTES: Final = 2**30
"""The most bytes that the calls of a loop may make and not free. Building or sharding a
model also makes many similar calls, and it keeps all their results."""

MIN_VALUES: Final = 4
"""So many values, with few calls between them, are a loop."""

MAX_MISSED: Final = 16
"""Consecutive values that needed a plan, after which running forward is given up."""

MAX_LOOKED_AHEAD: Final = 2**7
"""Calls that a check of values may run forward before a value is read."""

FAILURES: Final = (ReplayError, RuntimeError, LookupError, TypeError, ValueError)
"""Errors of a call; the plan that follows names the call."""

ExecutionOf: TypeAlias = Callable[[ProgramCalls, Request], Execution]
"""Returns the planned replay of a request to a recording."""


class LoopValues:
    """Runs the calls of a recording forward, if they look like a loop.

    While it ``is_live``, it has the kept contents and :meth:`find_values` can answer.
    """

    def __init__(self, prepare: ExecutionOf) -> None:
        self.is_live = False
        self._prepare = prepare
        self._run_before = (0, 0)
        self._forward = ForwardReplay()
        self._n_values = self._n_missed = 0
        self._n_unseen = 0

    def run_new_calls(self, recorded: ProgramCalls, budget: ValueBudget) -> None:
        """Run the new calls forward if they are a loop; keep the results."""
        forward, program = self._forward, recorded.program
        forward.allows = budget.allows
        columns, start = columns_of(recorded), forward.n_calls
        kept = recorded.kept
        # A skipped call must not change a kept content: a plan would rely on it.
        is_strict = self.is_live or (kept is not None and bool(kept.storages))
        forward.drop(program.written_unseen)
        if not self.is_live:
            if not self._is_loop(recorded, columns, budget):
                return
            self._take_kept(recorded, start)
            forward.move_to(start, program.offsets[start], 0)
            self._fetch(recorded, start, budget)
        if not (program.assumptions or needs_flags(program)):
            n_chunks = -(-len(recorded) // N_AT_ONCE)
            progress = budget.watch(lambda: [CHUNK_SECONDS] * n_chunks)
            forward.note_chunk = progress.note_step
            try:
                with suppress(*FAILURES):
                    forward.run(columns, is_strict=is_strict)
            finally:
                progress.finish()
                forward.note_chunk = dict
        self._return_kept(recorded)

    def end(self, recorded: ProgramCalls, program: Program) -> None:
        """Keep the contents at the end of a recording."""
        if self.is_live:
            recorded.read(program)
            self._return_kept(recorded)

    def _fetch(self, recorded: ProgramCalls, start: int, budget: ValueBudget) -> None:
        """Add the storages that calls from ``start`` on use, as they are before."""
        births, find_last = recorded.births, recorded.writers.find_last
        memory = self._forward.memory
        used = np.asarray(births) < start
        if used.any():
            read = read_rows(recorded.program, start, len(recorded)).storages
            used &= np.bincount(read, minlength=len(used)) > 0
        missing = [s for s in np.flatnonzero(used).tolist() if s not in memory]
        filled: list[int] = []
        for storage in missing:
            birth, nbytes = births[storage], recorded.nbytes_by_storage[storage]
            is_new = 0 <= birth == find_last(storage, start)
            if is_new and recorded.call(birth).operator.is_empty:
                memory.add(storage, allocate(nbytes, CPU))
                self._forward.blank.add(storage)
            else:
                filled.append(storage)
        batches = [filled]
        while batches:
            batch = batches.pop()
            try:
                made = self._replay(recorded, batch, start, budget)
            except (ReplayError, MissingValueError):
                if len(batch) > 1:
                    batches += [[storage] for storage in batch]
                continue
            for storage, real in made.items():
                memory.add(storage, real.clone())

    def _replay(
        self,
        recorded: ProgramCalls,
        storages: Sequence[int],
        until: int,
        budget: ValueBudget,
    ) -> dict[int, UntypedStorage]:
        """Replay storages as they are before a call."""
        sizes = recorded.nbytes_by_storage
        read = tuple((s, describe_bytes(sizes[s])) for s in storages)
        wanted = frozenset(storages)
        request = Request(storages=wanted, read=read, until=until, keeps=True)
        replay = self._prepare(recorded, request)
        budget.check(replay, 0)
        made: dict[int, UntypedStorage | Tensor] = {}
        budget.run(replay, made.__setitem__)
        replay.keep(made)
        return {s: m for s, m in made.items() if isinstance(m, UntypedStorage)}

    def _is_loop(
        self, recorded: ProgramCalls, columns: ReplayColumns, budget: ValueBudget
    ) -> bool:
        """Whether the calls since the last value are many, of few signatures."""
        start, offsets = self._forward.n_calls, recorded.program.offsets
        n_calls = len(recorded) - start
        if n_calls < MIN_CALLS:
            return False
        starts = offsets[start:-1]
        numbers = np.asarray(columns.words)[np.asarray(starts)]
        n_kinds = np.count_nonzero(np.bincount(numbers))
        if n_calls < MIN_REPEATS * n_kinds:
            return False
        made = find_live(recorded, start)
        if sum(map(recorded.nbytes_by_storage.__getitem__, made)) > MAX_HELD_NBYTES:
            return False
        n_unknown, work = self._forward.count_kinds(columns, starts)
        return n_unknown * MIN_KNOWN < n_calls and work <= budget.max_flops()

    def find_missing(self, recorded: ProgramCalls) -> set[int]:
        """Return the live storages that must be computed before calls run forward.

        These are all that the calls since the last value use, as the next turn of a
        loop will use them again, and that are not kept; none if no loop begins with the
        next value.
        """
        kept, n_values = recorded.kept, self._n_values + 1
        if kept is None or n_values < MIN_VALUES or self._n_missed >= MAX_MISSED:
            return set()
        start, constants = self._forward.n_calls, recorded.constants
        used = {*read_rows(recorded.program, start, len(recorded)).storages.tolist()}
        written = {
            storage
            for storage in recorded.writers.written - recorded.dead
            if storage not in constants or constants[storage].tensor is None
        }
        known = {*kept.storages} - find_outdated(recorded)
        return (find_live(recorded, 0).union(written) & used) - known

    def note_value(
        self, recorded: ProgramCalls, cost: Evaluation, planned: Execution | None
    ) -> Evaluation:
        """Note that a value was read; after several, become live. Return the cost."""
        forward, end = self._forward, len(recorded)
        start, forward.n_calls = forward.n_calls, end
        self._n_missed = self._n_missed + 1 if planned is not None else 0
        self._n_values = self._n_values + 1 if end - start < MIN_CALLS else 0
        is_often = self._n_values >= MIN_VALUES and self._n_missed <= MAX_MISSED
        program, columns = recorded.program, columns_of(recorded)
        if (
            is_often
            and not (program.assumptions or needs_flags(program))
            and not forward.count_kinds(columns, program.offsets[start:-1])[0]
        ):
            self._take_kept(recorded, end)
            forward.move_to(end, program.offsets[end], len(columns.deaths))
            self._n_unseen, self.is_live = len(program.written_unseen), True
        n_calls, flops = self._count_run()
        return cost._replace(n_calls=cost.n_calls + n_calls, flops=cost.flops + flops)

    def find_values(
        self, columns: ReplayColumns, wanted: Sequence[int], n_unseen: int
    ) -> tuple[list[UntypedStorage], Evaluation] | None:
        """Return storages as they are now, and the cost; None if one is unknown.

        Only while :attr:`is_live`, and while no mode intercepts torch. The caller must
        not write or keep the results. ``n_unseen`` counts real storages that were
        written outside of torch.
        """
        found = self._run_on(columns, wanted, n_unseen)
        if found is None:
            return None
        self._n_missed = 0
        n_calls, flops = self._count_run()
        nbytes = sum(real.nbytes() for real in found)
        at = self._forward.n_calls
        return found, Evaluation(at, n_calls=n_calls, nbytes=nbytes, flops=flops)

    def look(
        self, columns: ReplayColumns, storage: int, n_unseen: int, budget: ValueBudget
    ) -> UntypedStorage | None:
        """Return a storage for a check of values; as :meth:`find_values`."""
        before, self._forward.allows = self._forward.allows, budget.allows
        try:
            found = self._run_on(columns, [storage], n_unseen)
        finally:
            self._forward.allows = before
        return found[0] if found else None

    def is_near(self, n_calls: int) -> bool:
        """Whether few calls were recorded since those that were run forward."""
        return self.is_live and n_calls - self._forward.n_calls <= MAX_LOOKED_AHEAD

    def _run_on(
        self, columns: ReplayColumns, wanted: Sequence[int], n_unseen: int
    ) -> list[UntypedStorage] | None:
        """Run the new calls forward; return storages, None if one is unknown."""
        forward = self._forward
        if n_unseen != self._n_unseen:
            return None
        try:
            is_done = forward.run(columns, is_strict=True)
        except FAILURES:
            return None
        found = [forward.read(s, columns) if is_done else None for s in wanted]
        return None if None in found else cast("list[UntypedStorage]", found)

    def _count_run(self) -> tuple[int, int]:
        """Return the calls run forward since the last value, and their FLOPs."""
        n_run, work = self._run_before
        forward = self._forward
        self._run_before = forward.n_run, forward.work
        return forward.n_run - n_run, forward.work - work

    def _take_kept(self, recorded: ProgramCalls, n_calls: int) -> None:
        """Take the kept contents that are valid before a call."""
        self._forward.clear()
        kept, find_last = recorded.kept, recorded.writers.find_last
        self._forward.kept = kept
        n_storages = len(recorded.births)
        self._forward.is_unwritten = lambda storage: (
            storage >= n_storages or find_last(storage, n_calls) < 0
        )
        if kept is None:
            return
        known = kept.list_contents(can_assume=False)
        raw = kept.find_raw(known)
        for storage, last in [*known.items()]:
            is_there = storage not in raw and storage not in recorded.dead
            if is_there and find_last(storage, n_calls) == last:
                self._forward.memory.add(storage, kept.take(storage))

    def _return_kept(self, recorded: ProgramCalls) -> None:
        """Move all contents to the kept ones."""
        forward = self._forward
        forward.separate()
        memory, streams, end = forward.memory, forward.streams, forward.n_calls
        blank = forward.blank
        kept = recorded.kept
        self.is_live = False
        forward.clear()
        if kept is None:
            return
        if streams is not None:
            for generator, draw, state in streams.ends():
                kept.put_state(generator, draw, state)
        for storage, content in memory.held.items():
            constant = recorded.constants.get(storage)
            # The user may change their own tensor: it is read again each time.
            is_shared = constant is not None and constant.tensor is not None
            if storage in blank or is_shared or storage in recorded.dead:
                continue
            last_call = recorded.writers.find_last(storage, end)
            real = cast("UntypedStorage", content.real)
            kept.put(storage, Content(real, last_call, is_assumed=False))


def find_live(recorded: ProgramCalls, start: int) -> set[int]:
    """Return the live storages that calls from ``start`` on made."""
    made = np.flatnonzero(np.asarray(recorded.births) >= start)
    return {*made.tolist()} - recorded.dead


def describe_bytes(nbytes: int) -> Geometry:
    """Return the geometry of all bytes of a storage."""
    return Geometry(
        shape=(nbytes,),
        stride=(1,),
        storage_offset=0,
        dtype=torch.uint8,
        device=CPU,
        layout=torch.strided,
    )


def run_earlier_loops(
    earlier: ProgramCalls, prepare: ExecutionOf, limits: ValueLimits
) -> None:
    """Run the loops of a finished recording, once, if the limits allow that."""
    kept = earlier.kept
    if kept is not None and not kept.has_run_loops:
        kept.has_run_loops = True
        LoopValues(prepare).run_new_calls(earlier, ValueBudget(limits))
