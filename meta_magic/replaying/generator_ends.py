"""Where a plan leaves the generators."""

from collections.abc import Iterator, Mapping

from meta_magic.replaying.program_calls import ProgramCalls
from meta_magic.replaying.program_draws import Draw
from meta_magic.replaying.steps import StepKind

__all__ = ["find_end", "find_ends", "find_last_draw", "find_skipped", "find_unowned"]


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
    return max(
        (
            draw.number
            for draw in made
            if draw.generator == 0 and kinds[draw.call] != StepKind.ALLOCATE
        ),
        default=-1,
    )


def find_unowned(recorded: ProgramCalls, last_draw: int) -> Iterator[Draw]:
    """Yield the draws after one, up to the first that fills a module."""
    owned = {storage for storage, _ in recorded.program.owner_by_storage}
    for draw in recorded.draws[last_draw + 1 :]:
        _, storages = recorded.tensors(draw.call)
        if not draw.source or not owned.isdisjoint(storages):
            return
        yield draw


def find_skipped(recorded: ProgramCalls, last_draw: int) -> str | None:
    """Return in words before which draw the default generator stays, if any.

    How much such a one draws depends on values that nobody asked for.
    """
    for draw in find_unowned(recorded, last_draw):
        call = recorded.call(draw.call)
        if draw.generator == 0 and not call.operator.draws_blindly:
            return recorded.describe(call)
    return None


def find_end(recorded: ProgramCalls, last_draw: int) -> int:
    """Return where the default generator stands after a draw."""
    for draw in recorded.draws[last_draw + 1 :]:
        if draw.generator == 0:
            return draw.source
    return recorded.program.randomness.ends[0]
