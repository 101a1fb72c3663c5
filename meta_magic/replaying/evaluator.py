"""Values on demand: what tensors of a recording hold now, if that takes little.

What was replayed for one value is kept for the next: each call is made once, as long
as what it leaves fits into the limits.
"""

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from typing import Final, NamedTuple, TypeAlias

import torch
from torch import Tensor, UntypedStorage

from meta_magic.errors import MissingValueError, ReplayError, ValueLimitError
from meta_magic.recording.identities.origins import living_of
from meta_magic.replaying.contents import find_dependents, find_outdated
from meta_magic.replaying.execution import Execution
from meta_magic.replaying.kept import (
    Kept,
    find_kept,
    forget_unreachable,
    keep_for,
)
from meta_magic.replaying.loop_values import LoopValues, bring_on_earlier
from meta_magic.replaying.program_calls import ProgramCalls
from meta_magic.replaying.replay import build_tensor
from meta_magic.replaying.steps import Request
from meta_magic.replaying.value_budget import ValueBudget
from meta_magic.torch_private.snapshot import RealTorch
from meta_magic.trace.program import Program
from meta_magic.trace.program_facts import Evaluation
from meta_magic.trace.signature import Geometry

CPU: Final = torch.device("cpu")

Made: TypeAlias = dict[int, UntypedStorage | Tensor]


class Done(NamedTuple):
    """A replay that was run, if one had to be, the wanted storages, what they took."""

    replay: Execution | None
    made: Made
    cost: Evaluation


class Evaluator:
    """Computes values for one recording as it goes on, and so makes each call once.

    Args:
        is_apart: Whether it computes what nobody asked for: others see nothing of
            it, and it makes no dependents, of which a training has ever more.
    """

    def __init__(self, *, is_apart: bool = False) -> None:
        self._is_apart = is_apart
        self._recorded: ProgramCalls | None = None
        self._earlier: dict[int, ProgramCalls] = {}
        self._left_behind: set[int] = set()
        self.loops = LoopValues(self._plan)

    def evaluate(
        self,
        program: Program,
        wanted: Sequence[tuple[int, Geometry]],
        budget: ValueBudget,
        *,
        can_assume: bool = True,
        is_brief: bool = False,
    ) -> tuple[list[Tensor], Evaluation]:
        """Return the values that tensors have on the CPU now, and what they took.

        They rest on what was assumed, and are not to be written.

        Args:
            program: All that was recorded so far.
            wanted: Storage and geometry of each tensor.
            budget: What it may take.
            can_assume: Whether they may rest on what was assumed.
            is_brief: Whether it is of no interest how much more it would take.

        Raises:
            MissingValueError: It would take more, or depends on what was not recorded.
        """
        request = Request(
            storages=frozenset(storage for storage, _ in wanted),
            read=tuple(wanted),
            can_assume=can_assume,
            keeps=True,
            max_flops=budget.max_flops() if is_brief else None,
        )
        try:
            budget.refuse_more()
            with RealTorch(), budget:
                recorded = self._read(program, budget)
                behind = set() if self._is_apart else find_outdated(recorded)
                done = None if behind else find_there(recorded, request, budget)
                done = done or self._make(recorded, behind, request, budget)
                tensors = [build_tensor(g, done.made[storage]) for storage, g in wanted]
        except ReplayError as error:
            raise MissingValueError(str(error)) from error
        return tensors, self.loops.note_value(recorded, done.cost, done.replay)

    def state_at(
        self, program: Program, source: int, budget: ValueBudget
    ) -> Tensor | None:
        """Return where a CPU generator would stand; None if it takes too much.

        Args:
            program: All that was recorded so far.
            source: The place, as the source of a draw.
            budget: What it may take.
        """
        request = Request(sources=frozenset({source}), keeps=True)
        try:
            with RealTorch():
                recorded = self._read(program, budget)
                behind = find_outdated(recorded)
                done = self._make(recorded, behind, request, budget)
        except (ReplayError, ValueLimitError):
            return None
        return None if done.replay is None else done.replay.state_at(source)

    def hand_over(self, program: Program) -> None:
        """Let later recordings go on from what was kept of this one.

        Args:
            program: All that was recorded.
        """
        forget_unreachable()
        if self._recorded is not None and self._recorded.kept is not None:
            self.loops.end(self._recorded, program)
            keep_for(program, self._recorded.kept)

    def _make(
        self,
        recorded: ProgramCalls,
        behind: AbstractSet[int],
        request: Request,
        budget: ValueBudget,
    ) -> Done:
        """Replay what is wanted, and bring along what must be, if that can be had.

        Raises:
            ReplayError: What is wanted depends on what was not recorded.
            MissingValueError: So it does, or it would take too much.
        """
        if self._is_apart:
            return run(self._plan(recorded, request), budget, keeps=True)
        left = set(self._left_behind)
        along = behind - left
        while True:
            wider = replace(request, storages=request.storages | along)
            try:
                replay = self._plan(recorded, wider)
                more = find_dependents(replay.plan) - wider.storages - left
                if not more:
                    done = run(replay, budget, keeps=True)
                    break
                along |= more
            except (ReplayError, MissingValueError) as error:
                is_over = isinstance(error, ValueLimitError)
                if is_over and not along and request.max_flops is not None:
                    raise
                if not along:  # what is wanted, and no more
                    replay = self._plan(recorded, replace(request, keeps=False))
                    done = run(replay, budget, keeps=False)
                    break
                left |= along
                along = set()
        if recorded.kept is not None:
            self._left_behind = left.difference(recorded.kept.storages)
        return done

    def _read(self, program: Program, budget: ValueBudget) -> ProgramCalls:
        """Return the calls of a recording; keep what its loops have come to by now."""
        recorded = self._recorded
        if recorded is None:
            recorded = self._recorded = ProgramCalls(program)
        else:
            recorded.read(program)
        if recorded.kept is None:
            recorded.kept = Kept()
        recorded.kept.drop(program.torn)
        self.loops.bring_on(recorded, budget)
        return recorded

    def _plan(self, recorded: ProgramCalls, request: Request) -> Execution:
        known = self._earlier | {id(recorded.program): recorded}

        def read(other: Program) -> ProgramCalls:
            found = known.get(id(other))
            if found is None:
                found = self._earlier[id(other)] = ProgramCalls(other)
                found.kept = Kept() if self._is_apart else find_kept(other)
                storages = set(range(len(found.births)))
                found.dead.update(storages - living_of(other))
                bring_on_earlier(found, self._plan)
            return found

        replay = Execution(recorded.program, request, CPU, read)
        check(replay, request)
        return replay


def check(replay: Execution, request: Request) -> None:
    """Refuse what nobody knows the values of.

    Raises:
        MissingValueError: What is requested comes from that.
    """
    if not replay.plan.storages.isdisjoint(replay.plan.recorded.program.torn):
        raise MissingValueError(
            "a real tensor that it comes from was written unseen by torch, as numpy "
            "does it"
        )
    if replay.reads_raw(request.read) and not replay.find_out():
        # Kernels that trust sizes and positions would write anywhere.
        raise MissingValueError(
            "nothing was written to it, or to some of what it comes from, since "
            f"{replay.describe_raw()}"
        )


def find_there(
    recorded: ProgramCalls, request: Request, budget: ValueBudget
) -> Done | None:
    """Return what is wanted if all of it was kept and needs no replay."""
    kept = recorded.kept
    if kept is None or not budget.allows_kept(kept.nbytes):
        return None
    known = kept.list_contents(can_assume=request.can_assume)
    raw = kept.find_raw(known.keys() & request.storages)
    if any(s in raw and not raw[s].holds(geometry) for s, geometry in request.read):
        return None
    made: Made = {}
    for storage in request.storages:
        if known.get(storage) != recorded.writers.find_last(storage, len(recorded)):
            return None
        made[storage] = kept.find(storage)
    nbytes = sum(recorded.nbytes_by_storage[storage] for storage in made)
    return Done(
        None, made, Evaluation(len(recorded), n_calls=0, nbytes=nbytes, flops=0)
    )


def run(replay: Execution, budget: ValueBudget, *, keeps: bool) -> Done:
    """Run a replay; under :func:`RealTorch`.

    Args:
        replay: The replay.
        budget: What it may take.
        keeps: Whether what it leaves is kept for later ones, with what is kept already.

    Raises:
        ValueLimitError: It takes more.
        ReplayError: A step failed.
    """
    idle_nbytes = sum(part.drop_idle(is_all=not keeps) for part in replay.parts)
    cost = budget.check(replay, idle_nbytes)
    made: Made = {}
    budget.run(replay, made.__setitem__)
    if keeps:
        replay.keep(made)
    return Done(replay, made, cost)
