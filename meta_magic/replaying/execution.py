"""Run plans on a real device: that of a recording, after those it goes on from."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TypeVar

import torch
from torch import Tensor, UntypedStorage

from meta_magic.errors import ReplayError
from meta_magic.replaying.contents import (
    find_drawn_elsewhere,
    find_raw,
    find_raw_before,
    find_raw_source,
)
from meta_magic.replaying.followers import find_behind
from meta_magic.replaying.part import Finished, Part
from meta_magic.replaying.partial_writes import RawFollower, has_partial_writes
from meta_magic.replaying.program_calls import ProgramCalls
from meta_magic.replaying.raw_memory import RawMemory
from meta_magic.replaying.results import Result, find_results
from meta_magic.replaying.steps import Plan, Request, Step
from meta_magic.trace.program import EarlierEnd, Import, Program
from meta_magic.trace.signature import Geometry

__all__ = ["Execution", "Finished", "imported_by", "order_latest_first"]

Fact = TypeVar("Fact")


class Execution:
    """One replay of the calls that some storages depend on.

    What earlier recordings made is replayed first, each recording once.

    Args:
        program: What was recorded.
        request: What is wanted of it.
        device: What stands for meta.
        read: Returns the columns of a program.

    Raises:
        ReplayError: Their content depends on something that was not recorded.

    Attributes:
        plan: What will be done of the program itself.
    """

    def __init__(
        self,
        program: Program,
        request: Request,
        device: torch.device,
        read: Callable[[Program], ProgramCalls] = ProgramCalls,
    ) -> None:
        requests = {id(program): request}
        parts: list[Part] = []
        for current in order_latest_first(program, needed_by):
            if id(current) not in requests:
                continue
            recorded, wanted = read(current), requests[id(current)]
            if parts and request.keeps:
                storages = wanted.storages | find_behind(recorded)
                wanted = replace(wanted, storages=storages)
            part = Part(recorded, wanted, device)
            parts.append(part)
            ends = part.plan.earlier_ends.values()
            needs: list[Import | EarlierEnd] = [*part.imports, *ends]
            for needed in needs:
                number = id(needed.program)
                known = requests.get(number) or request.of_earlier(needed.program)
                requests[number] = known.extend(needed)
        self._last = parts[0]
        self._keeps, self._read = request.keeps, request.read
        self._results: list[dict[int, Result]] = []
        self._parts = parts[::-1]
        self.plan = self._last.plan
        self._takers: dict[tuple[int, int], list[tuple[Part, int]]] = {}
        for part in self._parts:
            for i in part.imports:
                key = (id(i.program), i.origin)
                self._takers.setdefault(key, []).append((part, i.storage))

    @property
    def steps(self) -> list[Step]:
        """Steps of all recordings, in order."""
        return [step for part in self._parts for step in part.steps]

    @property
    def uninitialized(self) -> set[int]:
        """Wanted storages of which some holds what lay in memory before."""
        return self._raw[id(self._last)].keys() & self.plan.wanted

    def reads_raw(self, read: Iterable[tuple[int, Geometry]]) -> bool:
        """Whether wanted tensors hold, or something rests on, what lay in memory.

        Args:
            read: Storage and geometry of the tensors.
        """
        raw = self._raw[id(self._last)]
        if any(raw[storage].is_tainted for storage in self.uninitialized):
            return True
        return any(s in raw and not raw[s].holds(geometry) for s, geometry in read)

    def find_out(self) -> bool:
        """Find out as it runs what is written where values say; whether anything is.

        What is read and was not written is then refused by :meth:`run`.
        """
        if not has_partial_writes(self.plan):
            return False
        given = {
            number: self._raw[id(part)][storage]
            for part in self._parts
            for storage in self._raw[id(part)].keys() & part.plan.wanted
            for taker, number in self._takers_of(part, storage)
            if taker is self._last
        }
        follower = RawFollower(self.plan, find_raw_before(self.plan, given))
        self._last.follower = follower
        self._raw[id(self._last)] = follower.raw
        return True

    def describe_raw(self) -> str:
        """Return in words which call made the memory that wanted storages still hold.

        With what is said to differ at its line.
        """
        for part in self._parts:
            recorded = part.plan.recorded
            call = find_raw_source(part.plan, self._raw[id(part)])
            if call is not None:
                line = recorded.line(call.number)
                caveats = recorded.program.caveats if line is not None else ()
                said = [f": {text}" for text, at in caveats if at == line]
                return f"{recorded.describe(call)} made that{''.join(said)}"
        return "torch.empty made that"

    @cached_property
    def _raw(self) -> dict[int, dict[int, RawMemory]]:
        """Storages of each part of which some holds what lay in memory before."""
        return self.follow(find_raw)

    @property
    def drawn_elsewhere(self) -> set[int]:
        """Wanted storages that rest on what the generator of an accelerator draws."""
        found = self.follow(find_drawn_elsewhere)[id(self._last)]
        return found.keys() & self.plan.wanted

    def follow(
        self, find: Callable[[Plan, Mapping[int, Fact]], dict[int, Fact]]
    ) -> dict[int, dict[int, Fact]]:
        """Find storages of each part, given those that earlier ones pass on."""
        given: dict[int, dict[int, Fact]] = {}
        found: dict[int, dict[int, Fact]] = {}
        for part in self._parts:
            here = found[id(part)] = find(part.plan, given.get(id(part), {}))
            for storage in here.keys() & part.plan.wanted:
                for taker, number in self._takers_of(part, storage):
                    given.setdefault(id(taker), {})[number] = here[storage]
        return found

    def peak_nbytes(self, kept: Mapping[int, int]) -> int:
        """Return the most bytes held at any moment; see :meth:`Plan.peak_nbytes`."""
        peak = 0
        waiting: dict[int, int] = {}
        for part in self._parts:
            waiting.pop(id(part), None)  # what it was given counts in its own peak
            own = part.peak_nbytes(kept if part is self._last else {})
            peak = max(peak, own + sum(waiting.values()))
            for storage in part.plan.wanted:
                nbytes = part.plan.recorded.nbytes_by_storage[storage]
                for taker, _ in self._takers_of(part, storage):
                    waiting[id(taker)] = waiting.get(id(taker), 0) + nbytes
        return peak

    def run(self, finished: Finished) -> Iterator[None]:
        """Do it, one step at a time; under :func:`RealTorch`.

        Args:
            finished: Given each wanted storage as soon as nothing changes it any more.

        Yields:
            After each step.

        Raises:
            ReplayError: A step failed, or gave something else than was recorded.
        """
        done: dict[int, Part] = {}
        if self._keeps:  # before anything is taken out of what was kept
            self._results = list(self._find_results())
        for part in self._parts:
            is_last = part is self._last
            part.go_on_from(done)
            done[id(part.program)] = part
            yield from part.run(finished if is_last else self._passing_on(part))
        if self._last.follower is not None and self.reads_raw(self._read):
            raise ReplayError(
                f"nothing was written to some of it, since {self.describe_raw()}"
            )

    def keep(self, made: Mapping[int, UntypedStorage | Tensor]) -> None:
        """Leave to later replays what :meth:`run` made and what still lives.

        Args:
            made: What it handed over.
        """
        for part, results in zip(self._parts, self._results, strict=True):
            own = made if part is self._last else {}
            part.keep(own, results, self._raw[id(part)])

    def _find_results(self) -> Iterator[dict[int, Result]]:
        """Yield, for each part, how its storages come to what they will hold."""
        assumed: dict[int, set[int]] = {}
        for part in self._parts:
            results = find_results(part.plan, assumed.get(id(part), ()))
            yield results
            for storage in part.plan.wanted & results.keys():
                if results[storage].is_assumed:
                    for taker, number in self._takers_of(part, storage):
                        assumed.setdefault(id(taker), set()).add(number)

    def end_state(self) -> Tensor | None:
        """Return where torch's default CPU generator would stand now, if it moved."""
        return self._last.end_state()

    @property
    def parts(self) -> Sequence[Part]:
        """What is done of each recording, in order."""
        return self._parts

    def state_at(self, source: int) -> Tensor | None:
        """Return where a CPU generator of the program stood at a requested source."""
        return self._last.state_at(source)

    def _takers_of(self, part: "Part", storage: int) -> list[tuple["Part", int]]:
        return self._takers.get((id(part.program), storage), [])

    def _passing_on(self, part: "Part") -> Finished:
        """Return what gives the content of storages to later recordings."""

        def take(storage: int, real: UntypedStorage | Tensor) -> None:
            takers = self._takers_of(part, storage)
            # What none of them writes, a later recording will ask for here again.
            is_kept = storage in part.plan.spared
            is_kept = is_kept and not any(t.writes(number) for t, number in takers)
            if is_kept:
                part.give(storage, real)
            for index, (taker, number) in enumerate(takers):
                # Each may write it: all but one get a copy.
                taker.give(number, real.clone() if index or is_kept else real)

        return take


def order_latest_first(
    program: Program, sources_of: Callable[[Program], Sequence[Program]]
) -> list[Program]:
    """Return a recording and all that it goes on from, each before those it needs.

    Args:
        program: The recording.
        sources_of: Returns those from which one goes on directly.
    """
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
    """Return the recordings whose storages one met."""
    return list({id(i.program): i.program for i in program.imports}.values())


def needed_by(program: Program) -> list[Program]:
    """Return the recordings whose storages one met, or whose generators it found."""
    states = program.randomness.states
    return [
        *imported_by(program),
        *(state.program for state in states if isinstance(state, EarlierEnd)),
    ]
