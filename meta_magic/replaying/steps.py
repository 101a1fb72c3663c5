"""What is asked of a replay (:class:`Request`), and its steps (:class:`Plan`)."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import IntEnum
from itertools import takewhile
from typing import NamedTuple

from meta_magic.replaying.program_calls import Call, Draw, ProgramCalls, state_before
from meta_magic.replaying.streams import split_draw
from meta_magic.trace.program import EarlierEnd, Import, Program
from meta_magic.trace.signature import Geometry


class StepKind(IntEnum):
    """What is done with a call of the program."""

    RUN = 0  # run it on real tensors
    ALLOCATE = 1  # allocate its outputs only; they are overwritten later
    DRAW = 2  # run it on scratch memory, to advance the generator


class Step(NamedTuple):
    """One step of a plan.

    Attributes:
        frees: Storages that no later step needs.
        finishes: Wanted storages that no later step changes.
    """

    kind: StepKind
    call: Call
    draw: Draw | None
    frees: tuple[int, ...]
    finishes: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The steps that make the wanted storages.

    Attributes:
        given: Storages that need their content from outside before the first step.
        blank: Storages that are allocated before the first step, without content.
        end: The state of torch's default generator after the plan, as ``Draw.source``
            describes it; None if it is not known.
        sources: All sources at which the state of a generator is needed.
        last_draw: The last draw from that generator; -1 if there is none.
        held: Storages with kept content, each with the last call that wrote it.
        retained: Storages to keep for later replays.
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
    retained: frozenset[int] = frozenset()

    @property
    def needs_earlier_contents(self) -> bool:
        """Whether a call needs a content of a storage older than the kept one."""
        latest = max(self.held.values(), default=-1)
        return any(
            step.call.number <= self.held.get(storage, -1)
            for step in takewhile(lambda s: s.call.number <= latest, self.steps)
            if step.kind == StepKind.RUN
            for storage in step.call.read | step.call.written
        )

    @property
    def earlier_ends(self) -> dict[int, EarlierEnd]:
        """The ends of earlier recordings at which a generator begins here, by state."""
        states = enumerate(self.recorded.program.randomness.states)
        ends = {n: end for n, end in states if isinstance(end, EarlierEnd)}
        if not ends:
            return {}
        draws = (step.draw for step in self.steps)
        sources = {d.source for d in draws if d is not None} | self.sources
        used = {state_before(source) for source in sources}
        return {n: end for n, end in ends.items() if n in used}

    @property
    def storages(self) -> set[int]:
        """All storages that the plan makes or needs."""
        made = {s for step in self.steps for s in step.call.outputs}
        return made | self.given | self.blank | self.held.keys()

    def peak_nbytes(self, kept: Mapping[int, int], *, can_split: bool) -> int:
        """Return the most bytes that are held at any moment."""
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
                if storage not in self.retained:
                    now -= alive.pop(storage)
            for storage in step.finishes:
                size, after = alive.pop(storage), kept.get(storage, sizes[storage])
                if after != size:  # the cast holds both for a moment
                    peak = max(peak, now + after)
                now += after - size
        return peak


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """The values that a replay shall compute.

    Attributes:
        read: Storage and geometry of the tensors that will be read; the other elements
            of these storages may be uninitialized.
        sources: Sources of draws at which the states of generators are wanted.
        modules: Numbers of the modules that the storages belong to. All draws of
            their construction are made, even those whose numbers were thrown away.
        continues_draws: Whether later draws that fill no other module are made as well:
            torch's generator then continues from there.
        waiting: An earlier recording whose draws torch's generator still needs; if it
            is replayed, too, its request also has ``continues_draws``.
        until: The count of calls to consider; None for all of them.
        can_assume: Whether the result may rest on assumed values and sizes.
        keeps: Whether live storages are kept for later replays.
        may_reorder: Whether calls may run earlier, if that takes less memory.
        max_flops: Operations above which planning is given up; None for no limit.
    """

    storages: frozenset[int] = frozenset()
    read: tuple[tuple[int, Geometry], ...] = ()
    sources: frozenset[int] = frozenset()
    modules: frozenset[int] = frozenset()
    continues_draws: bool = False
    waiting: Program | None = None
    until: int | None = None
    can_assume: bool = False
    keeps: bool = False
    may_reorder: bool = False
    max_flops: int | None = None

    def of_earlier(self, program: Program) -> "Request":
        """Return the request to an earlier recording, still without storages."""
        return Request(
            can_assume=self.can_assume,
            keeps=self.keeps,
            may_reorder=self.may_reorder,
            continues_draws=program is self.waiting,
        )

    def extend(self, needed: Import | EarlierEnd) -> "Request":
        """Return the request with one more need of a later recording."""
        if isinstance(needed, Import):
            return replace(self, storages=self.storages | {needed.origin})
        return replace(self, sources=self.sources | {needed.source})
