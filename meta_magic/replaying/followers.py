"""Find what must be brought along, because what it comes from will be gone.

A replay goes on from what storages hold now. What lives and was made from what they
held before, or what a later call writes, is made while that can be had: else it would
take all calls since the beginning.
"""

from heapq import heapify, heappop, heappush

from meta_magic.replaying.program_calls import ProgramCalls
from meta_magic.replaying.steps import Plan, StepKind

__all__ = ["find_behind", "find_followers"]


def find_behind(recorded: ProgramCalls) -> set[int]:
    """Return the kept storages that were written since."""
    kept = recorded.kept
    known = {} if kept is None else kept.list_contents(can_assume=True)
    find_last, end = recorded.writers.find_last, len(recorded)
    behind = {s for s, last in known.items() if find_last(s, end) > last}
    return behind - recorded.dead


def find_followers(plan: Plan) -> set[int]:
    """Return what lives, is not made by a plan, and comes from what it writes over.

    Args:
        plan: The plan, of which all that lives is kept.
    """
    recorded, dead = plan.recorded, plan.recorded.dead
    made = {step.call.number for step in plan.steps if step.kind == StepKind.RUN}
    readers, end = recorded.readers, len(recorded) - 1
    readers.go_on()
    waiting = [
        index
        for storage, (first, last) in find_changed(plan).items()
        for index in readers.between(storage, first, last)
    ]
    heapify(waiting)
    found: set[int] = set()
    now = -1
    while waiting:
        index = heappop(waiting)
        if index == now:
            continue
        now = index
        # What a plan makes is there, unless it is freed at once.
        fresh = find_changed_by(recorded, index) - found
        if index in made:
            fresh = set(dead.among(fresh))
        found |= fresh
        for storage in fresh:
            for later in readers.between(storage, index + 1, end):
                heappush(waiting, later)
    return found - dead


def find_changed_by(recorded: ProgramCalls, index: int) -> set[int]:
    """Return the storages that a call makes or writes."""
    signature, storages = recorded.tensors(index)
    made = storages[len(signature.inputs) :]
    born = {s for s in made if recorded.births[s] == index}
    beside = recorded.sparse.changed.get(index, ())
    return born.union([storages[i] for i in signature.writes], beside)


def find_changed(plan: Plan) -> dict[int, tuple[int, int]]:
    """Return first and last call between which storages of a plan are written.

    Those that were freed are taken to be written last of all.
    """
    recorded, kept = plan.recorded, plan.recorded.kept
    first = {} if kept is None else kept.list_contents(can_assume=True)
    found = {}
    for storage in plan.spared | first.keys():
        last = recorded.writers.find_last(storage, len(recorded))
        begin = first.get(storage, recorded.births[storage])
        if storage in recorded.dead:
            found[storage] = begin + 1, len(recorded) - 1
        elif last > begin:
            found[storage] = begin + 1, last
    return found
