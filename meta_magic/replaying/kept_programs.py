"""What replays left of finished recordings, for as long as those are there.

A later recording goes on from that, with the tensors of an earlier one.
"""

import weakref
from functools import partial

from meta_magic.recording.identities.origins import living_of
from meta_magic.replaying.kept import Kept
from meta_magic.trace.program import Program

__all__ = ["find_kept", "forget_unreachable", "keep_for"]

kept_by_program: dict[int, tuple[weakref.ref[Program], Kept]] = {}


def keep_for(program: Program, kept: Kept) -> None:
    """Keep what replays left of a recording that is finished."""
    key = id(program)
    # A callback written in Python would swallow an interrupt.
    forget = partial(kept_by_program.pop, key)
    kept_by_program[key] = weakref.ref(program, forget), kept


def find_kept(program: Program) -> Kept:
    """Return what replays left of a finished recording, and will."""
    if id(program) not in kept_by_program:
        keep_for(program, Kept())
    return kept_by_program[id(program)][1]


def forget_unreachable() -> None:
    """Forget what no later recording can ask for: a later one has its tensors."""
    for ref, kept in [*kept_by_program.values()]:
        program = ref()
        if program is not None:
            kept.drop_others(living_of(program))
            kept.drop_states()
