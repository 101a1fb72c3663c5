"""Run a block with edits made, several at once, each in a child process.

A cell is edited as a whole. Of a ``with record()`` only what stands in it: the rest of
its file has run, and what was made there is as it was.
"""

import linecache
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from time import process_time
from typing import Final, NamedTuple

from meta_magic.errors import TrialError
from meta_magic.explain.edits.edit import Edit, apply_edit
from meta_magic.recording.as_device.oracle.child import (
    NO_ANSWER,
    ask_children,
    can_fork,
)
from meta_magic.trace.rerun import Rerun
from meta_magic.trace.trace import Trace
from meta_magic.trials.blocks import parse_block, restore_variables
from meta_magic.trials.sandbox import enter_sandbox
from meta_magic.trials.trial import record_block

__all__ = ["Block", "Outcome", "find_block", "read_outcome", "run_edited", "screen"]

SECONDS: Final = 2.0
"""What a child may compute."""

PATIENCE: Final = 4.0
"""How many seconds to wait for one, on a busy machine."""

SECONDS_OF_MANY: Final = 0.5
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


class Block(NamedTuple):
    """What is run again, and what of it may be edited.

    Attributes:
        rerun: What it takes to run it.
        text: What is edited, as Python: the cell, at its file's lines, or the file.
        typed: The same as it was typed.
        first_line: The number of the first line that was typed.
        lines: Those that may be edited: the user typed them, and they run again.
    """

    rerun: Rerun
    text: str
    typed: str
    first_line: int
    lines: frozenset[int]


def find_block(trace: Trace) -> Block | None:
    """Return what of a trace's block may be edited; None if nothing may."""
    rerun = trace.rerun
    if rerun is None or not can_fork():
        return None
    if rerun.text is None:
        text = "".join(linecache.getlines(rerun.file))
        lines = find_lines(rerun)
        return Block(rerun, text, text, 1, lines) if lines else None
    first, now = trace.cell.first_line, rerun.text.split("\n")
    typed = enumerate(trace.source.split("\n"), first)
    same = (at for at, line in typed if now[at - 1 : at] == [line])
    return Block(rerun, rerun.text, trace.source, first, frozenset(same))


def find_lines(rerun: Rerun) -> frozenset[int]:
    """Return the lines of the statements in a ``with record()``."""
    try:
        body = parse_block(rerun).body
    except (TrialError, SyntaxError):
        return frozenset()
    last = body[-1].end_lineno or body[-1].lineno
    return frozenset(range(body[0].lineno, last + 1))


def run_edited(block: Block, edits: Sequence[Edit]) -> list[Outcome | None]:
    """Return what becomes of a block by each of some edits; None where it fails.

    Each has a child of its own, two at once.
    """
    found: list[Outcome | None] = []
    for start in range(0, len(edits), AT_ONCE):
        pair = edits[start : start + AT_ONCE]
        asked = [partial(run_alone, block, edit) for edit in pair]
        answers = ask_children(asked, SECONDS, PATIENCE)
        found += [None if answer is NO_ANSWER else answer for answer in answers]
    return found


def screen(block: Block, edits: Sequence[Edit]) -> list[Edit]:
    """Return the edits with which a block seems to run.

    Many are tried in a child one after the other, which takes a third of the time;
    those that do not come to an end there are left out.
    """
    parts = [edits[first::AT_ONCE] for first in range(AT_ONCE)]
    asked = [partial(run_many, block, part) for part in parts if part]
    answers = ask_children(asked, SECONDS, PATIENCE)
    kept = {edit for answer in answers if answer is not NO_ANSWER for edit in answer}
    return [edit for edit in edits if edit in kept]


def run_many(block: Block, edits: Sequence[Edit]) -> list[Edit]:
    """Return the edits with which a block runs, as far as time is; in a child."""
    refused, end = enter_sandbox(), process_time() + SECONDS_OF_MANY
    kept = []
    for edit in edits:
        if process_time() > end:
            break
        if run(block, edit) is not None and not refused:
            kept.append(edit)
        refused.clear()
    return kept


def run_alone(block: Block, edit: Edit) -> Outcome | None:
    """Return what becomes of a block by an edit; called in a child."""
    refused = enter_sandbox()
    outcome = run(block, edit)
    return None if refused else outcome


def run(block: Block, edit: Edit) -> Outcome | None:
    """Return what becomes of a block by an edit, in this process."""
    rerun = block.rerun
    try:
        body = parse_block(rerun, apply_edit(block.text, edit))
        variables = restore_variables(rerun, body, {})
    except (TrialError, SyntaxError):
        return None
    choose: Callable[[], AbstractContextManager[None]] = nullcontext
    trace = record_block(rerun, body, variables, choose, is_probe=True)
    return read_outcome(trace) if trace.error is None else None


def read_outcome(trace: Trace) -> Outcome:
    """Return what became of a block."""
    last = trace.ops[-1].outputs if len(trace.ops) else ()
    n_parameters = sum(root.n_parameters for root in trace.modules)
    return Outcome(n_parameters, tuple(last[0].shape) if last else None)
