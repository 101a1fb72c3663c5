"""Run plans on a real device: those of earlier recordings, then the last one's.

``y = model(x)`` in a second cell uses parameters that the first cell made: both
recordings have a plan, a :class:`ProgramReplay` each. Read :class:`Execution` first.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from typing import Final, TypeVar

import torch
from torch import Tensor, UntypedStorage

from meta_magic.errors import ReplayError
from meta_magic.replaying.call_runner import (
    NOTHING,
    CallRunner,
    allocate,
    make_view,
    needs_flags,
    with_flags,
)
from meta_magic.replaying.contents import (
    RawTracker,
    Result,
    find_drawn_elsewhere,
    find_outdated,
    find_raw,
    find_raw_before,
    find_raw_source,
    find_results,
    has_partial_writes,
)
from meta_magic.replaying.kept import Content, RawMemory
from meta_magic.replaying.plan import plan_replay
from meta_magic.replaying.program_calls import Call, ProgramCalls
from meta_magic.replaying.steps import Plan, Request, Step, StepKind
from meta_magic.replaying.streams import (
    Streams,
    find_part,
    is_in_order,
    split_draw,
)
from meta_magic.trace.program import EarlierEnd, Import, Program
from meta_magic.trace.signature import span_nbytes

Fact = TypeVar("Fact")

Finished = Callable[[int, UntypedStorage | Tensor], None]
"""Receives a wanted storage: its number and its content; a tensor if it is sparse."""


class ProgramReplay(CallRunner):
    """The replay of one recording: a plan, with its memory and generators."""

    def __init__(
        self, recorded: ProgramCalls, request: Request, device: torch.device
    ) -> None:
        program = self.program = recorded.program
        self.plan: Plan = plan_replay(recorded, request, device)
        self._parts = find_parts(self.plan, device)
        self._copies = find_copies(self.plan, self._parts)
        self._copied = {copy.number for copy in self._copies.values()}
        given = self.plan.given - recorded.constants.keys()
        self.imports = [i for i in program.imports if i.storage in given]
        draws = [step.draw for step in self.plan.steps if step.draw is not None]
        streams = Streams(
            program.randomness,
            draws,
            self.plan.sources,
            device,
            recorded.kept,
            keeps=request.keeps,
        )
        super().__init__(recorded, device, streams)
        self.tracker: RawTracker | None = None
        self.on_step: Callable[[Step], None] = lambda _: None

    def end_state(self) -> Tensor | None:
        """Return the end state of torch's default CPU generator, if it is used."""
        end = self.plan.end
        return None if end is None else self.streams.state_at(end)

    def run(self, finished: Finished) -> Iterator[None]:
        """Run the steps; yield after each."""
        memory = self.memory
        used = {s for step in self.plan.steps for s in (*step.frees, *step.finishes)}
        has_flags = needs_flags(self.program)
        self._provide()
        for storage in self.plan.wanted - used:
            finished(storage, memory.take(storage))
        for step in self.plan.steps:
            self.on_step(step)
            if self.tracker is not None:
                self.tracker.check(step, self.read_inputs)
            number = step.call.number
            with with_flags(self.program, number) if has_flags else NOTHING:
                self._do(step)
            if step.frees:
                memory.free(s for s in step.frees if s not in self.plan.retained)
            for storage in step.finishes:
                finished(storage, memory.take(storage))
            yield

    def drop_unused(self, *, is_all: bool) -> int:
        """Drop unused kept contents: all of them, or those of dead storages."""
        kept, held = self.plan.recorded.kept, self.plan.held
        if kept is None:
            return 0
        idle = {s for s in kept.storages if s not in held}
        kept.drop(idle if is_all else idle & self.plan.recorded.dead)
        return kept.nbytes - kept.nbytes_of(held)

    @property
    def kept_nbytes(self) -> int:
        """Bytes of all kept contents of the recording."""
        kept = self.plan.recorded.kept
        return 0 if kept is None else kept.nbytes

    def keep(
        self,
        made: Mapping[int, UntypedStorage | Tensor],
        results: Mapping[int, Result],
        raw: Mapping[int, RawMemory],
    ) -> None:
        """Keep the live results for later replays."""
        recorded = self.plan.recorded
        kept = recorded.kept
        if kept is None:
            return
        for draw, state in self.streams.saved_states():
            kept.put_state(recorded.draws[draw].generator, draw, state)
        tainted = {storage for storage, memory in raw.items() if memory.is_tainted}
        for storage in self.plan.retained & results.keys() - tainted:
            real = made.get(storage, self.memory.find(storage))
            constant = recorded.constants.get(storage)
            # The user may change their own tensor: it is read again each time.
            is_shared = constant is not None and constant.tensor is not None
            if isinstance(real, UntypedStorage) and not is_shared:
                kept.put(storage, Content(real, *results[storage], raw.get(storage)))

    def _provide(self) -> None:
        """Add the storages that must exist before the first step."""
        recorded = self.plan.recorded
        kept = recorded.kept
        if kept is not None:
            for storage in self.plan.held:
                self.memory.add(storage, kept.take(storage))
        for storage in self.plan.given:
            constant = recorded.constants.get(storage)
            if constant is not None:
                self.memory.load(constant)
        for storage in self.plan.blank:
            nbytes = recorded.nbytes_by_storage[storage]
            self.memory.add(storage, allocate(nbytes, self.device))

    def _do(self, step: Step) -> None:
        call = step.call
        if step.kind == StepKind.ALLOCATE:
            for pair in zip(call.outputs, call.signature.outputs, strict=True):
                if pair[0] not in self.memory:
                    self.memory.allocate(*pair)
        elif step.kind == StepKind.DRAW:
            if step.draw is not None:
                self.use_up(call, step.draw, self._make_scratch(call))
        elif call.number in self._parts and step.draw is not None:
            part, copy = self._parts[call.number], self._copies.get(call.number)
            whole = self._open(copy or call)
            drawn = whole[part.start : part.stop] if copy is None else whole
            self.make_part(call, step.draw, drawn, part)
        elif call.number not in self._copied:
            inputs = self.read_inputs(call)
            outputs = self.make(call, step.draw, inputs)
            retained = self.plan.retained
            self.keep_outputs(call, inputs, outputs, step.frees, retained)

    def _open(self, call: Call) -> Tensor:
        """Return the elements of the first output of a call, in their order."""
        storage, geometry = call.outputs[0], call.signature.outputs[0]
        if storage not in self.memory:
            self.memory.allocate(storage, geometry)
        return self.memory.tensor(storage, geometry).view(-1)

    def _make_scratch(self, call: Call) -> Iterator[list[Tensor]]:
        """Yield scratch arguments for a call that is made for its draw alone."""
        device, sizes = self.device, self.plan.recorded.nbytes_by_storage
        pieces = split_draw(call) if device.type == "cpu" else []
        if pieces:
            whole = torch.empty(max(pieces), dtype=call.drawn.dtype, device=device)
            yield from ([whole[:numel]] for numel in pieces)
            return
        storages = {s: allocate(sizes[s], device) for s in call.inputs}
        pairs = zip(call.inputs, call.signature.inputs, strict=True)
        scratch = [make_view(storages[s], geometry) for s, geometry in pairs]
        if call.operator.draws_by_shape:
            for tensor in scratch:
                tensor.fill_(1)  # valid as a probability, mean, deviation and weight
        yield scratch


def find_parts(plan: Plan, device: torch.device) -> dict[int, range]:
    """Return the elements to draw, by call, where later steps read only some.

    Of each parameter of ``fully_shard(model)`` a process keeps a few rows.
    """
    kept, sizes = plan.wanted | plan.retained, plan.recorded.nbytes_by_storage
    needed: dict[int, tuple[int, int]] = {}  # the bytes that later steps read
    found = {}
    for step in reversed(plan.steps):
        call = step.call
        if step.kind != StepKind.RUN or call.signature.is_view:
            continue
        is_filled = step.draw is not None and len(call.inputs) == 1
        if is_filled and call.fills(0, sizes[call.inputs[0]]):
            first, end = needed.pop(call.inputs[0], (0, 0))
            itemsize = call.drawn.dtype.itemsize
            is_part = end and call.inputs[0] not in kept
            part = find_part(call, first // itemsize, -(-end // itemsize), device)
            if part is not None and is_part:
                found[call.number] = part
            continue
        for index in call.usage.read:
            storage, geometry = call.inputs[index], call.signature.inputs[index]
            first = (geometry.storage_offset or 0) * geometry.dtype.itemsize
            before, after = needed.get(storage, (first, 0))
            end = max(after, span_nbytes(geometry))
            needed[storage] = min(before, first), end
        for storage in call.written:
            needed[storage] = 0, sizes[storage]
    return found


COPYING: Final = frozenset({"aten.copy_.default", "aten.clone.default"})


def find_copies(plan: Plan, parts: Mapping[int, range]) -> dict[int, Call]:
    """Return, by call that draws a part, the only later call: one that copies the part.

    The part is drawn where it would be copied to.
    """
    sizes, found = plan.recorded.nbytes_by_storage, {}
    latest: dict[int, int] = {}  # the last call with each storage
    for step in plan.steps:
        call = step.call
        if step.kind != StepKind.RUN or call.signature.is_view:
            continue
        source = call.inputs[-1] if call.operator.name in COPYING else -1
        draw = latest.get(source, -1)
        if draw in parts and source in step.frees:
            target, made = call.outputs[0], call.signature.outputs[0]
            part = replace(call.signature.inputs[-1], placement=made.placement)
            is_whole = len(parts[draw]) * made.dtype.itemsize == sizes[target]
            if (
                is_whole
                and is_in_order(made)
                and part == replace(made, storage_offset=parts[draw].start)
                and latest.get(target, -1) < draw
            ):
                found[draw] = call
        latest |= dict.fromkeys((*call.inputs, *call.outputs), call.number)
    return found


class Execution:
    """The replay of a recording, after the parts of earlier ones that it needs."""

    def __init__(
        self,
        program: Program,
        request: Request,
        device: torch.device,
        read: Callable[[Program], ProgramCalls] = ProgramCalls,
    ) -> None:
        requests = {id(program): request}
        parts: list[ProgramReplay] = []
        # All requests to a recording are known once the later ones are planned.
        for current in order_latest_first(program, needed_by):
            if id(current) not in requests:
                continue
            recorded, wanted = read(current), requests[id(current)]
            if parts and request.keeps:
                storages = wanted.storages | find_outdated(recorded)
                wanted = replace(wanted, storages=storages)
            part = ProgramReplay(recorded, wanted, device)
            parts.append(part)
            ends = part.plan.earlier_ends.values()
            needs: list[Import | EarlierEnd] = [*part.imports, *ends]
            for needed in needs:
                number = id(needed.program)
                known = requests.get(number) or request.of_earlier(needed.program)
                requests[number] = known.extend(needed)
        self._last = parts[0]
        self._keeps, self.read = request.keeps, request.read
        self._results: dict[int, dict[int, Result]] = {}
        self._is_followed = False
        self.parts = parts[::-1]
        self.plan = self._last.plan
        self._importers = defaultdict[tuple[int, int], list[tuple[ProgramReplay, int]]](
            list
        )
        for part in self.parts:
            for i in part.imports:
                self._importers[id(i.program), i.origin].append((part, i.storage))

    @property
    def steps(self) -> list[Step]:
        """The steps of all recordings, in order."""
        return [step for part in self.parts for step in part.plan.steps]

    @property
    def uninitialized(self) -> set[int]:
        """Wanted storages that have uninitialized bytes."""
        return self._raw[id(self._last)].keys() & self.plan.wanted

    def reads_raw(self) -> bool:
        """Whether what is read has uninitialized elements, or comes from such."""
        raw = self._raw[id(self._last)]
        if any(raw[storage].is_tainted for storage in self.uninitialized):
            return True
        return any(s in raw and not raw[s].holds(geometry) for s, geometry in self.read)

    def follow_partial_writes(self) -> bool:
        """Follow uninitialized bytes while it runs, where masks or indices decide them.

        :meth:`run` then refuses to read uninitialized elements. Return whether there
        are such writes.
        """
        self._is_followed = any(has_partial_writes(part.plan) for part in self.parts)
        return self._is_followed

    def describe_raw(self) -> str:
        """Describe the call that allocated the uninitialized wanted memory."""
        for part in self.parts:
            recorded = part.plan.recorded
            call = find_raw_source(part.plan, self._raw[id(part)])
            if call is not None:
                line = recorded.line(call.number)
                caveats = recorded.program.caveats if line is not None else ()
                said = [f": {text}" for text, at in caveats if at == line]
                return f"{recorded.describe(call)} made that{''.join(said)}"
        return "torch.empty made that"

    def find_allocated(self) -> frozenset[int]:
        """Return the storages that the call of :meth:`describe_raw` allocated."""
        found = (find_raw_source(p.plan, self._raw[id(p)]) for p in self.parts)
        call = next(filter(None, found), None)
        return frozenset(() if call is None else call.outputs)

    @cached_property
    def _raw(self) -> dict[int, dict[int, RawMemory]]:
        """Storages of each part that have uninitialized bytes."""
        return self.follow(find_raw)

    @property
    def drawn_elsewhere(self) -> set[int]:
        """Wanted storages that rest on draws from an accelerator's generator."""
        found = self.follow(find_drawn_elsewhere)[id(self._last)]
        return found.keys() & self.plan.wanted

    def follow(
        self, find: Callable[[Plan, Mapping[int, Fact]], dict[int, Fact]]
    ) -> dict[int, dict[int, Fact]]:
        """Call ``find`` for each part, with the facts on storages of earlier parts."""
        given: dict[int, dict[int, Fact]] = {}
        found: dict[int, dict[int, Fact]] = {}
        for part in self.parts:
            here = found[id(part)] = find(part.plan, given.get(id(part), {}))
            self._give_facts(part, here, given)
        return found

    def _give_facts(
        self,
        part: ProgramReplay,
        here: Mapping[int, Fact],
        given: dict[int, dict[int, Fact]],
    ) -> None:
        for storage in here.keys() & part.plan.wanted:
            for importer, number in self._importers[id(part.program), storage]:
                given.setdefault(id(importer), {})[number] = here[storage]

    def peak_nbytes(self, kept: Mapping[int, int]) -> int:
        """Return the most bytes held at any moment; see :meth:`Plan.peak_nbytes`."""
        peak = 0
        waiting: dict[int, int] = {}
        for part in self.parts:
            waiting.pop(id(part), None)  # they count in the own peak of the part
            is_cpu, is_last = part.device.type == "cpu", part is self._last
            own = part.plan.peak_nbytes(kept if is_last else {}, can_split=is_cpu)
            peak = max(peak, own + sum(waiting.values()))
            for storage in part.plan.wanted:
                nbytes = part.plan.recorded.nbytes_by_storage[storage]
                for importer, _ in self._importers[id(part.program), storage]:
                    waiting[id(importer)] = waiting.get(id(importer), 0) + nbytes
        return peak

    def run(self, finished: Finished) -> Iterator[None]:
        """Run all steps; yield after each.

        Under :func:`RealTorch`. ``finished`` receives each wanted storage after the
        last step that changes it.
        """
        done: dict[int, ProgramReplay] = {}
        given: dict[int, dict[int, RawMemory]] = {}
        if self._keeps:  # before the parts take kept contents out
            self._results = self.follow(find_results)
        for part in self.parts:
            is_last = part is self._last
            for number, end in part.plan.earlier_ends.items():
                state_on = partial(done[id(end.program)].streams.state_at, end.source)
                part.streams.given[number] = state_on
            done[id(part.program)] = part
            if self._is_followed:
                raw = find_raw_before(part.plan, given.get(id(part), {}))
                part.tracker, self._raw[id(part)] = RawTracker(part.plan, raw), raw
            yield from part.run(finished if is_last else self._give_to_importers(part))
            if self._is_followed:
                left = {s: memory for s, memory in raw.items() if not memory.is_written}
                self._raw[id(part)] = left
                self._give_facts(part, left, given)
        if self._is_followed and self.reads_raw():
            raise ReplayError(
                f"nothing was written to some of it, since {self.describe_raw()}"
            )

    def keep(self, made: Mapping[int, UntypedStorage | Tensor]) -> None:
        """Keep live results of :meth:`run` for later replays."""
        for part in self.parts:
            own, number = made if part is self._last else {}, id(part)
            part.keep(own, self._results[number], self._raw[number])

    def _give_to_importers(self, part: ProgramReplay) -> Finished:
        """Return a function that gives finished storages to the later parts."""

        def take(storage: int, real: UntypedStorage | Tensor) -> None:
            importers = self._importers[id(part.program), storage]
            # A storage that no later part writes stays valid: keep it here.
            is_kept = storage in part.plan.retained and not any(
                number in later.plan.recorded.writers for later, number in importers
            )
            if is_kept:
                part.memory.add(storage, real)
            for index, (importer, number) in enumerate(importers):
                # Each part may write it: all but the first get a copy.
                own = real.clone() if index or is_kept else real
                importer.memory.add(number, own)

        return take


def order_latest_first(
    program: Program, sources_of: Callable[[Program], Sequence[Program]]
) -> list[Program]:
    """Return a recording and its sources, each before its own sources."""
    done: dict[int, Program] = {}
    stack = [(program, iter(sources_of(program)))]
    while stack:
        current, rest = stack[-1]
        following = next((p for p in rest if id(p) not in done), None)
        if following is not None:
            stack.append((following, iter(sources_of(following))))
        else:
            done.setdefault(id(current), current)
            stack.pop()
    return list(done.values())[::-1]


def imported_by(program: Program) -> list[Program]:
    """Return the recordings whose storages a recording uses."""
    return list({id(i.program): i.program for i in program.imports}.values())


def needed_by(program: Program) -> list[Program]:
    """Return the recordings whose storages or generator states a recording uses."""
    states = program.randomness.states
    earlier = (state.program for state in states if isinstance(state, EarlierEnd))
    return [*imported_by(program), *earlier]
