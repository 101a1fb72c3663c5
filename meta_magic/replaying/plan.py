"""Decide which calls of a program must run again, and what may be freed when.

:class:`Planner` follows a wanted storage backwards: to the calls that wrote it, to the
storages that those calls read, and so on, up to calls that overwrite a storage
completely. Random numbers come from a stream, so earlier draws from the same generator
are made again into scratch memory; or skipped, if their count of numbers is known.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from heapq import heappop, heappush

import torch

from meta_magic.errors import ReplayError, ValueLimitError
from meta_magic.replaying.collectives import check_alone
from meta_magic.replaying.program_calls import Call, Draw, ProgramCalls, draw_before
from meta_magic.replaying.steps import Plan, Request, Step, StepKind
from meta_magic.replaying.streams import count_words
from meta_magic.trace.program import AssumedNumbers


def plan_replay(recorded: ProgramCalls, request: Request, device: torch.device) -> Plan:
    """Return the plan of a request."""
    plan = Planner(recorded, request, device).build()
    if plan.needs_earlier_contents:
        plan = Planner(recorded, request, device, has_contents=False).build()
    return plan


class Planner:
    """The backward walk over a program."""

    def __init__(
        self,
        recorded: ProgramCalls,
        request: Request,
        device: torch.device,
        *,
        has_contents: bool = True,
    ) -> None:
        self._recorded = recorded
        self._wanted = request.storages
        self._request, self._device = request, device
        known = recorded.program.randomness.known if device.type == "cpu" else ()
        self._known = {draw for draw, _ in known}
        self._kept: Mapping[int, int] = {}
        self._held: set[int] = set()
        if recorded.kept is not None:
            if not recorded.draws_elsewhere():
                self._known |= recorded.kept.draws
            if has_contents:
                can_assume = request.can_assume
                self._kept = recorded.kept.list_contents(can_assume=can_assume)
        self._n_calls = len(recorded) if request.until is None else request.until
        self._forced: set[int] = set()
        self._calls: dict[int, Call] = {}
        self._kinds: dict[int, StepKind] = {}
        self._flops = 0
        self._given: set[int] = set()
        self._blank: set[int] = set()

    def build(self) -> Plan:
        """Return the plan."""
        while True:
            self._walk_back()
            blind, reading = self._find_missing_draws()
            if not reading:
                break
            self._forced |= reading  # walk back again, also from what these draws read
        for index in blind:
            self._add_draw(index)
        calls = [self._call(index) for index in self._kinds]
        if not self._request.can_assume:
            check_assumptions(self._recorded, calls)
        check_given(self._recorded, calls, self._given)
        for call in calls:
            check_alone(call.signature)
        order = sorted(self._kinds)
        by_call = self._recorded.draws_by_call
        made = [by_call[call] for call in by_call.keys() & self._kinds.keys()]
        last_draw = find_last(
            d for d in made if self._kinds[d.call] != StepKind.ALLOCATE
        )
        until = self._request.until
        end = None if last_draw < 0 else find_end(self._recorded, last_draw, until)
        plan = Plan(
            recorded=self._recorded,
            wanted=self._wanted,
            held={s: self._kept[s] for s in self._held},
            retained=self._find_retained(calls),
            steps=tuple(self._make_steps(order)),
            given=frozenset(self._given),
            blank=frozenset(self._blank),
            end=end,
            sources=self._request.sources | find_ends(self._recorded, self._kinds, end),
            last_draw=last_draw,
        )
        if not self._request.may_reorder:
            return plan
        early = replace(plan, steps=tuple(self._make_steps(self._run_early(order))))
        can_split = self._device.type == "cpu"
        return min((plan, early), key=lambda p: p.peak_nbytes({}, can_split=can_split))

    def _find_retained(self, calls: Iterable[Call]) -> frozenset[int]:
        if not self._request.keeps:
            return frozenset()
        used = {s for call in calls for s in (*call.inputs, *call.outputs)}
        return frozenset((used | self._held) - self._recorded.dead)

    def _call(self, index: int) -> Call:
        call = self._calls.get(index)
        if call is None:
            call = self._calls[index] = self._recorded.call(index)
        return call

    def _walk_back(self) -> None:
        """Find the calls that make the wanted contents.

        ``contents`` are storages whose content is needed before the current call,
        ``memory`` are those that only need to be allocated.
        """
        self._kinds, self._flops = {}, 0
        contents, memory = set(self._wanted), set[int]()
        births, shared = self._recorded.births, self._recorded.sparse.changed
        queue = CallQueue(self._recorded, self._n_calls, self._kept)
        queue.add(self._forced)
        self._held = queue.add_writers(contents)
        contents -= self._held
        for index in queue:
            signature, storages = self._recorded.tensors(index)
            born = {s for s in storages if births[s] == index}
            changed = born.union([storages[i] for i in signature.writes])
            changed.update(shared.get(index, ()))
            if index in self._forced or not changed.isdisjoint(contents):
                self._include(index, born, contents, memory)
            needed = contents.intersection(changed.union(storages))
            self._held |= queue.add_writers(needed)
            contents -= needed & self._held
            if memory:
                memory -= self._held
                if not born.isdisjoint(memory):
                    memory -= born
                    self._kinds.setdefault(index, StepKind.ALLOCATE)
                queue.add(births[s] for s in memory & {*storages} if births[s] >= 0)
        self._given, self._blank = contents, memory - contents

    def _include(
        self, index: int, born: set[int], contents: set[int], memory: set[int]
    ) -> None:
        """Add a call to the plan; the storages that it reads are needed before it."""
        call = self._call(index)
        contents -= born
        if call.operator.is_empty:
            self._kinds[index] = StepKind.ALLOCATE
            return
        self._kinds[index] = StepKind.RUN
        if self._request.max_flops is not None:
            self._flops += call.usage.work
            if self._flops > (self._request.max_flops or 0):
                raise ValueLimitError("it takes more operations than are allowed")
        usage, inputs = call.usage, call.inputs
        for position in usage.overwritten:
            target = inputs[position]
            nbytes = self._recorded.nbytes_by_storage[target]
            # Memory that is shared with a sparse tensor is not allocated anew.
            if not call.also_changed and call.fills(position, nbytes):
                contents.discard(target)
                memory.add(target)
            else:
                contents.add(target)
        contents.update([inputs[i] for i in usage.read])
        if len(usage.read) < len(inputs):
            memory |= set(inputs) - contents

    def _find_missing_draws(self) -> tuple[list[int], set[int]]:
        """Find the calls that draw from the same stream before a needed call does."""
        recorded = self._recorded
        early = (draw for draw in self._find_draws() if draw.call < self._n_calls)
        wanted_draws = [*filter(self._is_needed, early)]
        if self._request.continues_draws:
            wanted_draws += find_tail(recorded, find_last(wanted_draws))
            wanted_draws += self._find_before_end(wanted_draws)
        ends = map(draw_before, self._request.sources)
        unknown = (n for n in ends if n is not None and n not in self._known)
        wanted_draws += [recorded.draws[n] for n in unknown]
        needed: set[int] = set()
        for draw in reversed(wanted_draws):
            link: Draw | None = draw
            while link is not None and link.number not in needed:
                needed.add(link.number)
                if not link.source:
                    what = recorded.describe(self._call(link.call))
                    raise ReplayError(
                        f"{what} drew from a generator whose state came from another "
                        "recording around this one or before it"
                    )
                before = draw_before(link.source)
                has_more = before is not None and before not in self._known
                link = recorded.draws[before or 0] if has_more else None
        missing = sorted(recorded.draws[number].call for number in needed)
        missing = [i for i in missing if self._kinds.get(i) != StepKind.RUN]
        new = (i for i in missing if i not in self._kinds)
        blind = [i for i in new if self._call(i).operator.draws_blindly]
        return blind, set(missing) - set(blind)

    def _find_draws(self) -> Iterable[Draw]:
        recorded = self._recorded
        if self._request.modules:
            return recorded.draws
        wanted = self._wanted - self._held
        calls = {call for s in wanted for call in recorded.writers.of(s)}
        found = recorded.draws_by_call.keys() & (calls | self._kinds.keys())
        return [recorded.draws_by_call[call] for call in sorted(found)]

    def _find_before_end(self, wanted: Sequence[Draw]) -> Iterator[Draw]:
        """Yield the last draw of torch's generator, which ends as in a real run."""
        last = find_last(wanted)
        end = find_end(self._recorded, last) if last >= 0 else 0
        if draw_before(end) in (last, None):
            return
        unmade = [*find_before(self._recorded, end, self._known)]
        if all(
            draw.source
            and (
                self._kinds.get(draw.call) == StepKind.RUN
                or self._call(draw.call).operator.draws_blindly
            )
            for draw in unmade
        ):
            yield from unmade[:1]

    def _is_needed(self, draw: Draw) -> bool:
        if self._kinds.get(draw.call) == StepKind.RUN:
            return True
        if self._recorded.constructs(draw.call) in self._request.modules:
            return True
        call = self._call(draw.call)
        wanted = self._wanted - self._held
        return bool(wanted & {*call.written, *call.outputs})

    def _add_draw(self, index: int) -> None:
        """Add a call for its draw: in place if its tensors exist, else into scratch."""
        call, births = self._call(index), self._recorded.births
        is_scratch = call.operator.draws_by_shape or not all(
            births[s] in self._kinds and self._kinds[births[s]] != StepKind.DRAW
            for s in {*call.inputs, *call.outputs}
        )
        # A draw of known length is skipped.
        is_scratch = is_scratch or count_words(call, self._device) is not None
        self._kinds[index] = StepKind.DRAW if is_scratch else StepKind.RUN

    def _run_early(self, order: Iterable[int]) -> list[int]:
        """Return the calls, each moved directly after the last call that it depends on.

        The whole parameters of ``fully_shard(model)`` are then never in memory
        together. Draws keep their order.
        """
        written: dict[int, int] = {}
        used: dict[int, int] = {}
        moment: dict[int, int] = {}
        for index in order:
            call = self._call(index)
            changed = {*call.written, *call.outputs}
            before = [written[s] for s in call.inputs if s in written]
            before += [used[s] for s in changed if s in used]
            is_fixed = index in self._recorded.draws_by_call or not before
            moment[index] = index if is_fixed else max(before)
            for storage in (*call.inputs, *changed):
                used[storage] = max(used.get(storage, -1), moment[index])
            written |= dict.fromkeys(changed, moment[index])
        return sorted(moment, key=lambda index: (moment[index], index))

    def _make_steps(self, indices: Sequence[int]) -> Iterator[Step]:
        """Yield the steps, each with the storages that it finishes and frees."""
        last: dict[int, int] = {}
        for index in indices:
            call, kind = self._call(index), self._kinds[index]
            used = call.inputs if kind == StepKind.RUN else ()
            made = call.outputs if kind != StepKind.DRAW else ()
            last.update(dict.fromkeys((*used, *made), index))
            if call.also_changed:  # keep storages that share memory until then
                last.update(dict.fromkeys(call.also_changed.intersection(last), index))
        ended_by_call: dict[int, list[int]] = {}
        for storage, index in last.items():
            ended_by_call.setdefault(index, []).append(storage)
        for index in indices:
            ended, kind = ended_by_call.get(index, ()), self._kinds[index]
            finished = [s for s in ended if s in self._wanted]
            frees = [s for s in ended if s not in self._wanted] if finished else ended
            has_draw = kind != StepKind.ALLOCATE
            draw = self._recorded.draws_by_call.get(index) if has_draw else None
            yield Step(kind, self._calls[index], draw, tuple(frees), tuple(finished))


class CallQueue:
    """A queue of the calls that a backward walk visits, the latest first."""

    def __init__(self, calls: ProgramCalls, end: int, kept: Mapping[int, int]) -> None:
        self._kept = kept
        self._writers = calls.writers
        self._now = end
        self._heap: list[int] = []

    def __iter__(self) -> Iterator[int]:
        while self._heap:
            index = -heappop(self._heap)
            if index < self._now:  # else it was visited before
                self._now = index
                yield index

    def add(self, calls: Iterable[int]) -> None:
        """Add calls; those after the current one are ignored."""
        for index in calls:
            if index < self._now:
                heappush(self._heap, -index)

    def add_writers(self, storages: Iterable[int]) -> set[int]:
        """Add the last writer of each storage; return those with a kept content."""
        known = set()
        for storage in storages:
            last = self._writers.find_last(storage, self._now)
            if self._kept.get(storage) == last:
                known.add(storage)
            elif last >= 0:
                heappush(self._heap, -last)
        return known


def check_assumptions(recorded: ProgramCalls, calls: Sequence[Call]) -> None:
    """Refuse calls that rest on assumed sizes or values."""
    if not recorded.program.assumptions:
        return
    assumptions = {a.call: a for a in recorded.program.assumptions}
    numbers = AssumedNumbers(recorded.program)
    for call in calls:
        assumption = assumptions.get(call.number)
        if assumption is not None and assumption.value is None:
            raise ReplayError(
                f"it rests on the size that {recorded.describe(call)} gives, which was "
                f"assumed ({assumption.text}) and is not known"
            )
        is_number = numbers.may_be_in(call.number, call.signature)
        source = assumption or (numbers.first if is_number else None)
        if source is not None:
            what = recorded.describe(recorded.call(source.call))
            raise ReplayError(
                f"it rests, or may rest, on the value that {what} gives, which was "
                f"assumed ({source.text}) and is not known"
            )


def check_given(
    recorded: ProgramCalls, calls: Sequence[Call], given: Collection[int]
) -> None:
    """Refuse storages from outside whose content was not recorded."""
    imported = {i.storage: i for i in recorded.program.imports}
    for storage in sorted(given - recorded.constants.keys()):
        first = next((call for call in calls if storage in call.inputs), None)
        where = "" if first is None else f", read by {recorded.describe(first)},"
        if storage in imported:
            if imported[storage].is_stale:
                raise ReplayError(
                    f"a tensor of an earlier recording{where} was changed in place "
                    "outside of any recording: do that in a recorded cell, too",
                    storage,
                )
            continue
        raise ReplayError(
            f"a tensor of {recorded.nbytes_by_storage[storage]:,} bytes"
            f"{where} came from outside of the recording, on meta and so without "
            "its values (made elsewhere, or loaded from a file onto meta): make it "
            "in a recorded cell, too",
            storage,
        )


def find_ends(
    recorded: ProgramCalls, kinds: Mapping[int, StepKind], default: int | None
) -> set[int]:
    """Return the sources at which generators end: torch's, and those of the user."""
    found = set() if default is None else {default}
    for end in recorded.program.randomness.ends[1:]:
        last = draw_before(end)
        if last is not None:
            kind = kinds.get(recorded.draws[last].call, StepKind.ALLOCATE)
            if kind != StepKind.ALLOCATE:
                found.add(end)
    return found


def find_unowned(recorded: ProgramCalls, last_draw: int) -> Iterator[Draw]:
    """Yield the draws after ``last_draw``, up to the first that fills a module."""
    owned = {storage for storage, _ in recorded.program.owner_by_storage}
    for draw in recorded.draws[last_draw + 1 :]:
        _, storages = recorded.tensors(draw.call)
        if not draw.source or not owned.isdisjoint(storages):
            return
        yield draw


def find_tail(recorded: ProgramCalls, last_draw: int) -> Iterator[Draw]:
    """Yield the draws from torch's generator after one, that fill no module."""
    for draw in find_unowned(recorded, last_draw):
        if not recorded.call(draw.call).operator.draws_blindly:
            return
        if draw.generator == 0:
            yield draw


def find_skipped(plan: Plan, *, is_end_known: bool) -> str | None:
    """Describe the draw, of a count that values decide, where the generator stops."""
    recorded, made = plan.recorded, {step.draw for step in plan.steps}
    end = 0 if is_end_known else plan.end or 0
    before = [*find_before(recorded, end)][::-1]
    for draw in (*before, *find_unowned(recorded, plan.last_draw)):
        call = recorded.call(draw.call)
        is_skipped = draw not in made and not call.operator.draws_blindly
        if draw.generator == 0 and is_skipped:
            return recorded.describe(call)
    return None


def find_before(
    recorded: ProgramCalls, source: int, known: Collection[int] = ()
) -> Iterator[Draw]:
    """Yield the draws that lead to a source, the last one first, up to a known one."""
    number = draw_before(source)
    while number is not None and number not in known:
        draw = recorded.draws[number]
        yield draw
        number = draw_before(draw.source)


def find_last(draws: Iterable[Draw]) -> int:
    """Return the last of some draws from the default generator, or -1."""
    return max((draw.number for draw in draws if draw.generator == 0), default=-1)


def find_end(recorded: ProgramCalls, last_draw: int, until: int | None = None) -> int:
    """Return the source of the default generator's state after a draw, or after all."""
    if until is not None:
        return recorded.draws[last_draw].end
    for draw in recorded.draws[last_draw + 1 :]:
        if draw.generator == 0:
            return draw.source
    return recorded.program.randomness.ends[0]
