"""Find what must be brought along, because what it comes from will be gone.

A replay goes on from what storages hold now. What lives and was made from what they
held before, or what a later call writes, is made while that can be had: else it would
take all calls since the beginning.
"""

from collections.abc import Iterator, Mapping

from meta_magic.replaying.program_calls import ProgramCalls
from meta_magic.replaying.steps import Plan, StepKind

__all__ = ["find_behind", "find_followers"]


def find_behind(recorded: ProgramCalls) -> set[int]:
    """Return the kept storages that were written since."""
    kept = recorded.kept
    known = {} if kept is None else kept.list_contents(can_assume=True)
    living, n_calls = known.keys() - recorded.dead, len(recorded)
    find_last = recorded.writers.find_last
    return {s for s in living if find_last(s, n_calls) > known[s]}


def find_followers(plan: Plan) -> set[int]:
    """Return what lives, is not made by a plan, and comes from what it writes over.

    Args:
        plan: The plan, of which all that lives is kept.
    """
    recorded, dead = plan.recorded, plan.recorded.dead
    made = {step.call.number for step in plan.steps if step.kind == StepKind.RUN}
    changed = find_changed(plan)
    found: set[int] = set()
    for index in look_through(changed, found, len(recorded)):
        signature, storages = recorded.tensors(index)
        read = storages[: len(signature.inputs)]
        if any(s in found or changed.get(s, (0, -1))[1] >= index for s in read):
            born = storages[len(signature.inputs) :]
            results = {s for s in born if recorded.births.get(s) == index}
            results.update(storages[i] for i in signature.writes)
            # What a plan makes is there, unless it is freed at once.
            found |= results & dead if index in made else results
    return found - dead


def find_changed(plan: Plan) -> dict[int, tuple[int, int]]:
    """Return first and last call between which storages of a plan are written.

    Those that were freed are taken to be written last of all.
    """
    recorded, kept = plan.recorded, plan.recorded.kept
    first = {} if kept is None else kept.list_contents(can_assume=True)
    found = {}
    for storage in plan.spared | first.keys():
        last = recorded.writers.find_last(storage, len(recorded))
        begin = first.get(storage, recorded.births.get(storage))
        if storage in recorded.dead:
            found[storage] = begin + 1, len(recorded) - 1
        elif last > begin:
            found[storage] = begin + 1, last
    return found


def look_through(
    changed: Mapping[int, tuple[int, int]], found: set[int], end: int
) -> Iterator[int]:
    """Yield the calls in some stretches, and all after one that found something."""
    now = 0
    for first, last in sorted(changed.values()):
        yield from range(max(first, now), last + 1)
        now = max(now, last + 1)
        if found:
            break
    if found:
        yield from range(now, end)
