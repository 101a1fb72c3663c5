"""What storages hold after a plan: since which call, and whether by assumption."""

from collections.abc import Collection
from typing import NamedTuple

from meta_magic.replaying.steps import Plan, StepKind
from meta_magic.trace.derived_facts import AssumedNumbers

__all__ = ["Result", "find_results"]


class Result(NamedTuple):
    """How a storage came to what it holds.

    Attributes:
        last_call: The last call that made or wrote that; -1 before all.
        is_assumed: Whether it rests on what was assumed.
    """

    last_call: int
    is_assumed: bool


def find_results(plan: Plan, given: Collection[int]) -> dict[int, Result]:
    """Return how the storages of a plan come to what they hold after it.

    Args:
        plan: The plan.
        given: Storages that rest on what an earlier recording assumed.
    """
    recorded, kept, births = plan.recorded, plan.recorded.kept, plan.recorded.births
    assumptions = {a.call for a in recorded.program.assumptions}
    numbers = AssumedNumbers(recorded.program)
    results = {s: Result(-1, s in given) for s in plan.given}
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
