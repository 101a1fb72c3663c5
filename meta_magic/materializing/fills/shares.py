"""The replays that give a module its content, one for each recording that made some."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import torch

from meta_magic.errors import MaterializeError, ReplayError
from meta_magic.materializing.constructed import (
    Read,
    locate_constructed,
    make_reader,
)
from meta_magic.materializing.fills.protocol import State, Task
from meta_magic.materializing.located import Located, locate
from meta_magic.materializing.report import format_names
from meta_magic.materializing.targets import Target
from meta_magic.recording.identities.left_generators import find_left
from meta_magic.replaying.execution import Execution
from meta_magic.replaying.steps import Request
from meta_magic.replaying.uses import USES, find_phases
from meta_magic.trace.program import Program
from meta_magic.trace.signature import Phase

__all__ = ["Share", "describe", "find_waiting", "plan_shares"]

NAMES: Final[Mapping[Phase, str]] = {
    "forward": "a call of a module",
    "backward": "a backward pass",
    "optimizer": "an optimizer's step",
}

CANNOT_TELL: Final = (
    "cannot tell what {!r} was when it was constructed: what wrote it then rests on "
    "what {} computed. Choose state='current', or give the trace= of a recording that "
    "ended before that"
)

LATE: Final = (
    "{}: neither parameter nor buffer, and made by a use of the module: as after the "
    "cell"
)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Share:
    """What one recording contributes.

    Attributes:
        located: The recording and its targets.
        replay: What makes them.
        moves_generator: Whether torch's generator is to go on from where it ends.
    """

    located: Located
    replay: Execution
    moves_generator: bool


def plan_shares(
    task: Task, targets: Sequence[Target], modules: set[int], *, moves_generator: bool
) -> tuple[list[Share], list[str]]:
    """Return what makes targets, and what the user should know of when they were so.

    Args:
        task: What is to be filled.
        targets: What is to be made of it.
        modules: The ``id`` of each module whose construction is to be drawn for whole.
        moves_generator: Whether torch's generator is to go on from where it ends.

    Raises:
        MaterializeError: A target depends on something that was not recorded, or what
            it was when it was constructed cannot be told.
    """
    read = make_reader()
    late: set[Target] = set()
    while True:
        if task.state == "current":
            groups, at_end = locate(targets, task.program), list[Target]()
        else:
            groups, at_end = locate_constructed(targets, task.program, read, late)
        shares = [
            Share(
                located=located,
                replay=plan_execution(
                    located, modules, task, read, goes_on=moves_generator
                ),
                moves_generator=moves_generator and is_asked(located, task.state),
            )
            for located in groups
        ]
        used = find_used(share for share in shares if share.located.until is not None)
        if not used:
            return shares, describe_late(at_end)
        late |= used


def is_asked(located: Located, state: State) -> bool:
    """Whether targets are as they were asked for, and not as at the end instead."""
    return state == "current" or located.until is not None


def plan_execution(
    located: Located, modules: set[int], task: Task, read: Read, *, goes_on: bool
) -> Execution:
    """Return what makes the targets of a recording.

    Args:
        located: The recording and its targets.
        modules: The ``id`` of each module whose construction is to be drawn for whole.
        task: What is to be filled.
        read: Returns the columns of a program.
        goes_on: Whether torch's generator is to go on from where it ends.

    Raises:
        MaterializeError: A target depends on something that was not recorded.
    """
    origin, program = located.origin, located.program
    known = origin.modules if origin.program is program else {}
    goes_on = goes_on and task.state == "current"
    request = Request(
        storages=frozenset(located.target_by_storage),
        modules=frozenset(n for n, m in known.items() if id(m()) in modules),
        goes_on=goes_on,
        left=find_waiting() if goes_on else None,
        until=located.until,
    )
    try:
        return Execution(program, request, task.device, read)
    except ReplayError as error:
        raise describe(error, find_culprit(located, task.device, read)) from error


def find_used(shares: Iterable[Share]) -> set[Target]:
    """Return the targets that rest on a use of a module, though constructed before it.

    Raises:
        MaterializeError: A parameter or a buffer does.
    """
    used = set()
    for share in shares:
        phases = share.replay.follow(find_phases)[id(share.replay.parts[-1])]
        for number, target in share.located.target_by_storage.items():
            kinds = {place.kind for place in target.held}
            if phases.get(number) and kinds & {"parameter", "buffer"}:
                uses = [NAMES[use] for use in USES if use in phases[number]]
                text = CANNOT_TELL.format(target.name, " and ".join(uses))
                raise MaterializeError(text, target)
            if phases.get(number):
                used.add(target)
    return used


def describe_late(targets: Sequence[Target]) -> list[str]:
    """Return in words which targets are as after the cell, if any."""
    names = format_names([target.name for target in targets])
    return [LATE.format(names)] if targets else []


def find_waiting() -> Program | None:
    """Return the recording whose draws torch's generator waits for, if any."""
    left = find_left(torch.get_rng_state().numpy().tobytes())
    return None if left is None else left.program


def find_culprit(located: Located, device: torch.device, read: Read) -> Target | None:
    """Return the first target that cannot be replayed even alone."""
    for number, target in located.target_by_storage.items():
        request = Request(storages=frozenset({number}), until=located.until)
        try:
            Execution(located.program, request, device, read)
        except ReplayError:
            return target
    return None


def describe(error: ReplayError, target: Target | None) -> MaterializeError:
    """Return what a user is told when a replay is not possible."""
    what = "all of it" if target is None else repr(target.name)
    return MaterializeError(
        f"cannot replay {what}: {error}. Or choose init='reset', init='empty' or a "
        "checkpoint",
        target,
    )
