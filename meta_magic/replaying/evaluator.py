"""Values on demand: the values of tensors in the middle of a recording, within limits.

``loss.item()`` and ``if mask.any():`` are answered here. What one value needs is kept
for the next: each call is replayed once, as long as the kept contents fit into the
limits. Read :meth:`Evaluator.evaluate` first.
"""

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from typing import NamedTuple, TypeAlias

from torch import Tensor, UntypedStorage

from meta_magic.errors import MissingValueError, ReplayError, ValueLimitError
from meta_magic.recording.identities.origins import live_storages_of
from meta_magic.replaying.contents import find_dependents, find_outdated
from meta_magic.replaying.execution import Execution
from meta_magic.replaying.kept import Kept, find_kept, forget_unreachable, keep_for
from meta_magic.replaying.loop_values import LoopValues, run_earlier_loops
from meta_magic.replaying.program_calls import ProgramCalls
from meta_magic.replaying.steps import Request
from meta_magic.replaying.value_budget import ValueBudget
from meta_magic.replaying.verify import build_tensor
from meta_magic.torch_private.snapshot import RealTorch
from meta_magic.trace.options import LIMITS
from meta_magic.trace.program import Program
from meta_magic.trace.program_facts import Evaluation
from meta_magic.trace.signature import CPU, Geometry

Made: TypeAlias = dict[int, UntypedStorage | Tensor]


class Done(NamedTuple):
    """The replay that was run, if any; the wanted storages; the cost."""

    replay: Execution | None
    made: Made
    cost: Evaluation


class Evaluator:
    """Computes values of a running recording; makes each call once.

    A private one computes values that the cell did not ask for. It shares no kept
    contents with other evaluators, and saves no dependents.
    """

    def __init__(self, *, is_private: bool = False) -> None:
        self._is_private = is_private
        self._recorded: ProgramCalls | None = None
        self._earlier: dict[int, ProgramCalls] = {}
        self._given_up: set[int] = set()
        self.loops = LoopValues(self._prepare)

    def evaluate(
        self,
        program: Program,
        wanted: Sequence[tuple[int, Geometry]],
        budget: ValueBudget,
        *,
        can_assume: bool = True,
        stops_at_limit: bool = False,
    ) -> tuple[list[Tensor], Evaluation]:
        """Return the values that tensors have on the CPU now, and the cost.

        The returned tensors are not to be written. If planning stops at the limit, an
        error does not say how much the value would take.
        """
        request = Request(
            storages=frozenset(storage for storage, _ in wanted),
            read=tuple(wanted),
            can_assume=can_assume,
            keeps=True,
            max_flops=budget.max_flops() if stops_at_limit else None,
        )
        try:
            budget.refuse_more()
            with RealTorch(), budget:
                recorded = self._read(program, budget)
                outdated = set() if self._is_private else find_outdated(recorded)
                done = None if outdated else find_kept_values(recorded, request, budget)
                if done is None:
                    outdated |= self.loops.find_missing(recorded)
                    done = self._make(recorded, outdated, request, budget)
                tensors = [build_tensor(g, done.made[storage]) for storage, g in wanted]
        except ReplayError as error:
            raise MissingValueError(str(error)) from error
        return tensors, self.loops.note_value(recorded, done.cost, done.replay)

    def state_at(
        self, program: Program, source: int, budget: ValueBudget
    ) -> Tensor | None:
        """Return the state of a CPU generator; None if it exceeds the limits."""
        request = Request(sources=frozenset({source}), keeps=True)
        try:
            with RealTorch():
                recorded = self._read(program, budget)
                outdated = find_outdated(recorded)
                done = self._make(recorded, outdated, request, budget)
        except (ReplayError, ValueLimitError):
            return None
        replay = done.replay
        return None if replay is None else replay.parts[-1].streams.state_at(source)

    def keep_contents(self, program: Program) -> None:
        """Keep the contents for later recordings, at the end of this one."""
        forget_unreachable()
        if self._recorded is not None and self._recorded.kept is not None:
            self.loops.end(self._recorded, program)
            keep_for(program, self._recorded.kept)

    def _make(
        self,
        recorded: ProgramCalls,
        outdated: AbstractSet[int],
        request: Request,
        budget: ValueBudget,
    ) -> Done:
        """Replay the wanted storages, and the dependents of what that overwrites.

        After the overwrite, dependents could only be computed by a replay from the
        beginning. If they exceed the limits, only the wanted storages are made.
        """
        if self._is_private:
            return run(self._prepare(recorded, request), budget, keeps=True)
        given_up = set(self._given_up)
        dependents = outdated - given_up
        while True:
            wider = replace(request, storages=request.storages | dependents)
            try:
                replay = self._prepare(recorded, wider)
                more = find_dependents(replay.plan) - wider.storages - given_up
                if not more:
                    done = run(replay, budget, keeps=True)
                    break
                dependents |= more
            except (ReplayError, MissingValueError) as error:
                is_over = isinstance(error, ValueLimitError)
                if is_over and not dependents and request.max_flops is not None:
                    raise
                if not dependents:  # only what is wanted, and keep nothing
                    replay = self._prepare(recorded, replace(request, keeps=False))
                    done = run(replay, budget, keeps=False)
                    break
                given_up |= dependents
                dependents = set()
        if recorded.kept is not None:
            self._given_up = given_up.difference(recorded.kept.storages)
        return done

    def _read(self, program: Program, budget: ValueBudget) -> ProgramCalls:
        """Return the calls so far; replay the loops among them."""
        recorded = self._recorded
        if recorded is None:
            recorded = self._recorded = ProgramCalls(program)
        else:
            recorded.read(program)
        if recorded.kept is None:
            recorded.kept = Kept()
        recorded.kept.drop(program.written_unseen)
        self.loops.run_new_calls(recorded, budget)
        return recorded

    def _prepare(self, recorded: ProgramCalls, request: Request) -> Execution:
        known = self._earlier | {id(recorded.program): recorded}

        def read(other: Program) -> ProgramCalls:
            found = known.get(id(other))
            if found is None:
                found = self._earlier[id(other)] = ProgramCalls(other)
                found.kept = Kept() if self._is_private else find_kept(other)
                storages = set(range(len(found.births)))
                found.dead.update(storages - live_storages_of(other))
                limits = LIMITS.little() if self._is_private else LIMITS
                run_earlier_loops(found, self._prepare, limits)
            return found

        return Execution(recorded.program, request, CPU, read)


def find_kept_values(
    recorded: ProgramCalls, request: Request, budget: ValueBudget
) -> Done | None:
    """Return the wanted storages if all of them are kept; else None."""
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
    cost = Evaluation(len(recorded), n_calls=0, nbytes=nbytes, flops=0)
    return Done(None, made, cost)


def run(replay: Execution, budget: ValueBudget, *, keeps: bool) -> Done:
    """Run a replay; if it keeps nothing, first drop what others kept."""
    unused_nbytes = sum(part.drop_unused(is_all=not keeps) for part in replay.parts)
    cost = budget.check(replay, unused_nbytes)
    made: Made = {}
    budget.run(replay, made.__setitem__)
    if keeps:
        replay.keep(made)
    return Done(replay, made, cost)
