"""What a replay does: its steps, in order, and the bytes that they hold."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import IntEnum
from itertools import takewhile
from typing import NamedTuple

from meta_magic.replaying.program_calls import Call, Draw, ProgramCalls
from meta_magic.replaying.streams import split_draw
from meta_magic.trace.program import EarlierEnd, Import, Program
from meta_magic.trace.signature import Geometry


class StepKind(IntEnum):
    """What is done with a call of the program."""

    RUN = 0
    """Run it on real tensors."""
    ALLOCATE = 1
    """Make the memory that it makes; its content is overwritten later."""
    DRAW = 2
    """Run it on memory of its own, for the random numbers that it uses up."""


class Step(NamedTuple):
    """One thing to do.

    Attributes:
        kind: What.
        call: The call that it is about.
        draw: What it draws from, None if it does not.
        frees: Storages of no use after it.
        finishes: Wanted storages that have their content after it.
    """

    kind: StepKind
    call: Call
    draw: Draw | None
    frees: tuple[int, ...]
    finishes: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What to do to have the wanted storages.

    Attributes:
        recorded: The program.
        wanted: Storages to make.
        steps: What to do, in order.
        given: Storages that are there before the first step, with their content.
        blank: Storages that are there before the first step as mere memory.
        end: Where torch's default generator stands afterwards, as the source of a
            draw; None if it does not move.
        sources: All sources at which the state of a generator will be asked for.
        last_draw: The last draw from that generator; -1 if there is none.
        held: Storages whose content is there before the first step because an earlier
            replay kept it, and the last call that made or wrote that.
        spared: Storages that are kept for a later one.
    """

    recorded: ProgramCalls
    wanted: frozenset[int]
    steps: tuple[Step, ...]
    given: frozenset[int]
    blank: frozenset[int]
    end: int | None
    sources: frozenset[int]
    last_draw: int
    held: Mapping[int, int] = field(default_factory=dict)
    spared: frozenset[int] = frozenset()

    @property
    def needs_earlier_contents(self) -> bool:
        """Whether some call needs a storage as it was before what is held of it."""
        latest = max(self.held.values(), default=-1)
        return any(
            step.call.number <= self.held.get(storage, -1)
            for step in takewhile(lambda s: s.call.number <= latest, self.steps)
            if step.kind == StepKind.RUN
            for storage in step.call.read | step.call.written
        )

    @property
    def earlier_ends(self) -> dict[int, EarlierEnd]:
        """Where earlier recordings must bring a generator first, by the state here."""
        states = enumerate(self.recorded.program.randomness.states)
        ends = {n: end for n, end in states if isinstance(end, EarlierEnd)}
        if not ends:
            return {}
        draws = (step.draw for step in self.steps)
        sources = {d.source for d in draws if d is not None} | self.sources
        return {n: end for n, end in ends.items() if 2 * n + 1 in sources}

    @property
    def storages(self) -> set[int]:
        """All storages that it has to do with."""
        made = {s for step in self.steps for s in step.call.outputs}
        return made | self.given | self.blank | self.held.keys()

    def peak_nbytes(self, kept: Mapping[int, int], *, can_split: bool) -> int:
        """Return the most bytes that are held at any moment.

        Args:
            kept: Bytes that a wanted storage takes once it is finished.
            can_split: Whether draws of no use are made by :func:`split_draw`.
        """
        sizes = self.recorded.nbytes_by_storage
        there = self.given | self.blank | self.held.keys()
        alive = {storage: sizes[storage] for storage in there}
        now = peak = sum(alive.values())
        for step in self.steps:
            made = [s for s in step.call.outputs if s not in alive]
            if step.kind == StepKind.DRAW:
                call = step.call
                pieces = split_draw(call) if can_split else []
                itemsize = call.drawn.dtype.itemsize if pieces else 0
                scratch = {*call.inputs, *made} - alive.keys()
                whole = sum(sizes[storage] for storage in scratch)
                peak = max(peak, now + max(pieces, default=0) * itemsize or whole)
                continue
            for storage in made:
                alive[storage] = sizes[storage]
                now += sizes[storage]
            peak = max(peak, now)
            for storage in step.frees:
                if storage not in self.spared:
                    now -= alive.pop(storage)
            for storage in step.finishes:
                size, left = alive.pop(storage), kept.get(storage, sizes[storage])
                if left != size:  # cast, with both there for a moment
                    peak = max(peak, now + left)
                now += left - size
        return peak


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What a replay is to make.

    Attributes:
        storages: Numbers of storages, as they are after the calls looked at.
        read: Storage and geometry of the tensors that are read of them, where it is no
            harm that the rest holds what lay in memory before.
        sources: Where generators are to be brought, as the sources of draws.
        modules: Numbers of the modules they belong to. What was drawn while these
            were constructed is drawn even if it was thrown away.
        goes_on: Whether what was drawn after that, and fills no other module, is drawn
            as well: torch's generator is to go on from there.
        left: The earlier recording whose draws torch's generator waits for, if any:
            of what is needed of that, the same holds.
        until: Calls to look at; None for all of them.
        can_assume: Whether it may rest on sizes that were assumed.
        keeps: Whether what lives is kept for later ones.
        max_flops: Operations from which on it is given up; None for none.
    """

    storages: frozenset[int] = frozenset()
    read: tuple[tuple[int, Geometry], ...] = ()
    sources: frozenset[int] = frozenset()
    modules: frozenset[int] = frozenset()
    goes_on: bool = False
    left: Program | None = None
    until: int | None = None
    can_assume: bool = False
    keeps: bool = False
    max_flops: int | None = None

    def of_earlier(self, program: Program) -> "Request":
        """Return what is asked of an earlier recording from the first."""
        is_left = program is self.left
        return Request(can_assume=self.can_assume, keeps=self.keeps, goes_on=is_left)

    def extend(self, needed: Import | EarlierEnd) -> "Request":
        """Return what is asked of an earlier recording, and one thing more."""
        if isinstance(needed, Import):
            return replace(self, storages=self.storages | {needed.origin})
        return replace(self, sources=self.sources | {needed.source})
