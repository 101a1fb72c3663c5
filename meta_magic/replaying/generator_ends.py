"""Where a plan leaves the generators."""

from collections.abc import Collection, Iterable, Iterator, Mapping

from meta_magic.replaying.program_calls import ProgramCalls
from meta_magic.replaying.program_draws import Draw
from meta_magic.replaying.steps import Plan, StepKind

__all__ = [
    "find_before",
    "find_end",
    "find_ends",
    "find_last",
    "find_last_draw",
    "find_skipped",
    "find_tail",
]


def find_ends(
    recorded: ProgramCalls, kinds: Mapping[int, StepKind], default: int | None
) -> set[int]:
    """Return where generators end up: torch's, and the user's that come there.

    Args:
        recorded: The program.
        kinds: What is done with its calls.
        default: Where torch's ends up; None if it does not move.
    """
    found = set() if default is None else {default}
    ends = [e for e in recorded.program.randomness.ends[1:] if e and not e & 1]
    calls = {end: recorded.draws[end // 2 - 1].call for end in ends}
    empty = StepKind.ALLOCATE
    return found | {e for e in ends if kinds.get(calls[e], empty) != empty}


def find_last_draw(recorded: ProgramCalls, kinds: Mapping[int, StepKind]) -> int:
    """Return the last draw that is made from the default generator, or -1."""
    by_call = recorded.draws_by_call
    made = [by_call[call] for call in by_call.keys() & kinds.keys()]
    return find_last(d for d in made if kinds[d.call] != StepKind.ALLOCATE)


def find_unowned(recorded: ProgramCalls, last_draw: int) -> Iterator[Draw]:
    """Yield the draws after one, up to the first that fills a module."""
    owned = {storage for storage, _ in recorded.program.owner_by_storage}
    for draw in recorded.draws[last_draw + 1 :]:
        _, storages = recorded.tensors(draw.call)
        if not draw.source or not owned.isdisjoint(storages):
            return
        yield draw


def find_tail(recorded: ProgramCalls, last_draw: int) -> Iterator[Draw]:
    """Yield the draws of torch's generator after one, if any, that fill no module.

    For these nobody will ask later, and so they are made now.
    """
    for draw in find_unowned(recorded, last_draw):
        if not recorded.call(draw.call).operator.draws_blindly:
            return
        if draw.generator == 0:
            yield draw


def find_skipped(plan: Plan, *, is_end_known: bool) -> str | None:
    """Return in words before which draw the default generator stays, if any.

    How much such a one draws depends on values that nobody asked for.

    Args:
        plan: What was done.
        is_end_known: Whether that led to where the generator stands in the end.
    """
    recorded, made = plan.recorded, {step.draw for step in plan.steps}
    end = 0 if is_end_known else plan.end or 0
    before = [*find_before(recorded, end)][::-1]
    for draw in (*before, *find_unowned(recorded, plan.last_draw)):
        call = recorded.call(draw.call)
        is_left_out = draw not in made and not call.operator.draws_blindly
        if draw.generator == 0 and is_left_out:
            return recorded.describe(call)
    return None


def find_before(
    recorded: ProgramCalls, source: int, known: Collection[int] = ()
) -> Iterator[Draw]:
    """Yield the draws by which a generator came to a source, the last one first.

    Args:
        recorded: The program.
        source: As that of a draw.
        known: Draws of which it is known where they left the generator.
    """
    while source and not source & 1 and source // 2 - 1 not in known:
        draw = recorded.draws[source // 2 - 1]
        yield draw
        source = draw.source


def find_last(draws: Iterable[Draw]) -> int:
    """Return the last of some draws from the default generator, or -1."""
    return max((draw.number for draw in draws if draw.generator == 0), default=-1)


def find_end(recorded: ProgramCalls, last_draw: int, until: int | None = None) -> int:
    """Return where the default generator stands after a draw, seeded anew or not.

    Args:
        recorded: The program.
        last_draw: The draw.
        until: Where the program is taken to end, if before its end: at the draw, then.
    """
    if until is not None:
        return 2 * last_draw + 2
    for draw in recorded.draws[last_draw + 1 :]:
        if draw.generator == 0:
            return draw.source
    return recorded.program.randomness.ends[0]
