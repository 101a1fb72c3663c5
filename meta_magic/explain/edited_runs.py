"""Run a block with edits made, several at once, each in a child process.

A cell is edited as a whole. Of a ``with record()`` only what stands in it: the rest of
its file has run, and what was made there is as it was.
"""

import linecache
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from time import process_time
from typing import Any, Final, NamedTuple

from meta_magic.errors import TrialError
from meta_magic.explain.edits.edit import Edit, apply_edit
from meta_magic.recording.as_device.oracle.child import (
    NO_ANSWER,
    ask_children,
    can_fork,
)
from meta_magic.torch_private.dynamo import leave_dynamo_out
from meta_magic.trace.rerun import Rerun
from meta_magic.trace.trace import Trace
from meta_magic.trials.blocks import parse_block, restore_variables
from meta_magic.trials.sandbox import enter_sandbox
from meta_magic.trials.trial import record_block

__all__ = [
    "Block",
    "Failure",
    "Outcome",
    "find_block",
    "read_outcome",
    "run_edited",
    "screen",
]

SECONDS: Final = 1.0
"""What a child may compute, beside what the block took twice."""

PATIENCE: Final = 6.0
"""How many seconds to wait for one, on a busy machine."""

SECONDS_OF_MANY: Final = 0.25
"""After how long a child begins no other run."""

AT_ONCE: Final = 2


class Outcome(NamedTuple):
    """What became of a block.

    Attributes:
        n_parameters: Of all its modules.
        shape: Of the last tensor that it made; None if it made none.
    """

    n_parameters: int
    shape: tuple[int, ...] | None


class Failure(NamedTuple):
    """A block that did not come to its end.

    Attributes:
        reason: Why, in words; "" if it raised an error.
    """

    reason: str = ""


RAISED: Final = Failure()
NO_END: Final = Failure("it crashed, or did not end")


class Block(NamedTuple):
    """What is run again, and what of it may be edited.

    Attributes:
        rerun: What it takes to run it.
        text: What is edited, as Python: the cell, at its file's lines, or the file.
        typed: The same as it was typed.
        first_line: The number of the first line that was typed.
        lines: Those that may be edited: the user typed them, and they run again.
        seconds: How long it took.
    """

    rerun: Rerun
    text: str
    typed: str
    first_line: int
    lines: frozenset[int]
    seconds: float


def find_block(trace: Trace) -> Block | None:
    """Return what of a trace's block may be edited; None if nothing may."""
    rerun = trace.rerun
    if rerun is None or not can_fork():
        return None
    if rerun.text is None:
        text = "".join(linecache.getlines(rerun.file))
        lines = find_lines(rerun)
        found = Block(rerun, text, text, 1, lines, trace.seconds)
        return found if lines else None
    first, now = trace.cell.first_line, rerun.text.split("\n")
    typed = enumerate(trace.source.split("\n"), first)
    same = (at for at, line in typed if now[at - 1 : at] == [line])
    lines = frozenset(same)
    return Block(rerun, rerun.text, trace.source, first, lines, trace.seconds)


def find_lines(rerun: Rerun) -> frozenset[int]:
    """Return the lines of the statements in a ``with record()``."""
    try:
        body = parse_block(rerun).body
    except (TrialError, SyntaxError):
        return frozenset()
    last = body[-1].end_lineno or body[-1].lineno
    return frozenset(range(body[0].lineno, last + 1))


def run_edited(block: Block, edits: Sequence[Edit]) -> list[Outcome | Failure]:
    """Return what becomes of a block by each of some edits.

    Each has a child of its own, all at once.
    """
    answers = ask(block, [partial(run_alone, block, edit) for edit in edits])
    return [NO_END if answer is NO_ANSWER else answer for answer in answers]


def screen(
    block: Block, edits: Sequence[Edit], n_wanted: int
) -> dict[Edit, Outcome | Failure]:
    """Return what seems to become of a block by some edits.

    Many are tried in a child one after the other, until several of them have come to
    different outcomes: where code keeps what an earlier run of it left behind, each
    has to be run alone after that.

    Args:
        block: The block.
        edits: The edits.
        n_wanted: How many outcomes are enough for a child.

    Returns:
        What became of it by those that were tried.
    """
    parts = [edits[first::AT_ONCE] for first in range(AT_ONCE)]
    asked = [partial(run_many, block, part, n_wanted) for part in parts if part]
    tried: dict[Edit, Outcome | Failure] = {}
    for part, answer in zip(parts, ask(block, asked), strict=False):
        if answer is NO_ANSWER:  # one of them ends the process, or does not end itself
            first = part[:AT_ONCE]
            tried |= zip(first, run_edited(block, first), strict=True)
        else:
            tried |= zip(part, answer, strict=False)
    return tried


def ask(block: Block, asked: Sequence[Callable[[], Any]]) -> list[Any]:
    """Return what children answer that run a block."""
    return ask_children(asked, SECONDS + 2 * block.seconds, PATIENCE)


def run_many(
    block: Block, edits: Sequence[Edit], n_wanted: int
) -> list[Outcome | Failure]:
    """Return what becomes of a block by edits, as far as time is; in a child."""
    refused, end = enter_trial(), process_time() + SECONDS_OF_MANY
    outcomes: list[Outcome | Failure] = []
    for edit in edits:
        outcomes.append(run(block, edit, refused))
        n_found = len({one for one in outcomes if isinstance(one, Outcome)})
        if process_time() > end or n_found >= n_wanted:
            break
    return outcomes


def run_alone(block: Block, edit: Edit) -> Outcome | Failure:
    """Return what becomes of a block by an edit; called in a child."""
    return run(block, edit, enter_trial())


def enter_trial() -> list[str]:
    """Refuse side effects, and torch's own first of all, as :func:`enter_sandbox`."""
    leave_dynamo_out()  # a kernel that the block did not come to may import it
    return enter_sandbox()


def run(block: Block, edit: Edit, refused: list[str]) -> Outcome | Failure:
    """Return what becomes of a block by an edit, in this process.

    Args:
        block: The block.
        edit: The edit.
        refused: What a sandbox refused; emptied.
    """
    rerun = block.rerun
    refused.clear()
    try:
        body = parse_block(rerun, apply_edit(block.text, edit))
        variables = restore_variables(rerun, body, {})
    except (TrialError, SyntaxError):
        return RAISED
    choose: Callable[[], AbstractContextManager[None]] = nullcontext
    trace = record_block(rerun, body, variables, choose, is_probe=True)
    if refused:
        return Failure(f"it {refused[0]}")
    return RAISED if trace.error is not None else read_outcome(trace)


def read_outcome(trace: Trace) -> Outcome:
    """Return what became of a block."""
    last = trace.ops[-1].outputs if len(trace.ops) else ()
    n_parameters = sum(root.n_parameters for root in trace.modules)
    return Outcome(n_parameters, tuple(last[0].shape) if last else None)
