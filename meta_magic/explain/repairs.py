"""Repairs of a failed block that were tried: edits with which it runs to its end.

Each is recorded in a child process, from the variables as they were before the block.
"""

import linecache
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from itertools import islice
from time import monotonic, process_time
from typing import Any, Final, NamedTuple

from meta_magic.errors import TrialError
from meta_magic.explain.edits.program_text import Edit, apply_edit
from meta_magic.recording.as_device.oracle.child import (
    NO_ANSWER,
    ask_children,
    can_fork,
)
from meta_magic.torch_private.dynamo import leave_dynamo_out
from meta_magic.trace.rerun import Rerun
from meta_magic.trace.trace import Trace
from meta_magic.trace.units import format_shape
from meta_magic.trials.blocks import parse_block, restore_variables
from meta_magic.trials.sandbox import enter_sandbox
from meta_magic.trials.trial import record_block

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
    answers = ask(block, [partial(run_in_child, block, edit) for edit in edits])
    return [NO_END if answer is NO_ANSWER else answer for answer in answers]


def screen(
    block: Block, edits: Sequence[Edit], n_wanted: int
) -> dict[Edit, Outcome | Failure]:
    """Return what seems to become of a block by some edits.

    Many are tried in a child one after the other, until several of them have come to
    different outcomes: where code keeps what an earlier run left behind, each
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
        outcomes.append(run_edit(block, edit, refused))
        n_found = len({one for one in outcomes if isinstance(one, Outcome)})
        if process_time() > end or n_found >= n_wanted:
            break
    return outcomes


def run_in_child(block: Block, edit: Edit) -> Outcome | Failure:
    """Return what becomes of a block by an edit; called in a child."""
    return run_edit(block, edit, enter_trial())


def enter_trial() -> list[str]:
    """Refuse side effects, and torch's own first of all, as :func:`enter_sandbox`."""
    leave_dynamo_out()  # a kernel that the block did not come to may import it
    return enter_sandbox()


def run_edit(block: Block, edit: Edit, refused: list[str]) -> Outcome | Failure:
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


MAX_REPAIRS: Final = 3

MAX_ALONE: Final = 6
"""How many that seem to help are run once more."""

MAX_SECONDS: Final = 2.0
MAX_OF_CHILDREN: Final = 0.6
"""What trials may take: on the clock, and of processors' time."""

SOLVED: Final = 0.6
"""How much earlier what is solved is tried: a large block is not run often."""

GROWTH: Final = 0.3
"""What it counts at most that an edit changes the number of parameters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Repair:
    """An edit with which a block runs.

    Attributes:
        line: The first line that is changed, of the cell.
        changes: (line, before, after) of each line that is changed.
        source: The whole cell with it; of a ``with record()`` the whole file.
        consequence: What becomes of parameters and of the last tensor, in words.
    """

    line: int
    changes: tuple[tuple[int, str, str], ...]
    source: str
    consequence: str

    @property
    def before(self) -> str:
        """The lines that are changed."""
        return "\n".join(before for _, before, _ in self.changes)

    @property
    def after(self) -> str:
        """What they become."""
        return "\n".join(after for _, _, after in self.changes)

    @property
    def diff(self) -> str:
        """The lines before and after, as a unified diff has them."""
        return "\n".join(
            f"@@ -{line} +{line} @@\n-{before}\n+{after}"
            for line, before, after in self.changes
        )


class Ran(NamedTuple):
    """An edit with which a block ran, and what came of it."""

    edit: Edit
    outcome: Outcome


class Tried(NamedTuple):
    """What came of edits.

    Attributes:
        repairs: Those with which the block ran, the best first.
        n_tried: How many were tried.
        reason: Why one of the others did not come to an end, if it raised no error.
    """

    repairs: tuple[Repair, ...] = ()
    n_tried: int = 0
    reason: str = ""


def try_edits(trace: Trace, block: Block, edits: Sequence[Edit]) -> Tried:
    """Return the edits with which a block runs.

    Those come first that change least, and before those that come to the same as an
    earlier one.
    """
    before = read_outcome(trace).n_parameters
    allowed = [edit for edit in edits if block.lines.issuperset(edit.lines)]
    tried = [*screen_in_order(block, allowed)]
    ran = [Ran(edit, one) for edit, one in tried if isinstance(one, Outcome)]
    reasons = (one.reason for _, one in tried if isinstance(one, Failure))
    ran.sort(key=lambda one: one.edit.cost + weigh(one.outcome, before))
    firsts = {one.outcome: one for one in reversed(ran)}
    ran.sort(key=lambda one: firsts[one.outcome] is not one)
    likely = [one.edit for one in ran[:MAX_ALONE]]
    alone = islice(confirm(block, likely), MAX_REPAIRS)
    repairs = tuple(write_repair(block, one, before) for one in alone)
    return Tried(repairs, len(tried), next(filter(None, reasons), ""))


def weigh(outcome: Outcome, before: int) -> float:
    """Return what it counts that the number of parameters is another than before."""
    more = abs(outcome.n_parameters - before)
    return GROWTH * min(1.0, more / before) if before else 0.0


def screen_in_order(
    block: Block, edits: Sequence[Edit]
) -> Iterator[tuple[Edit, Outcome | Failure]]:
    """Yield the edits that were tried, and what seems to become of the block.

    No more are tried when time is up, or as many have helped as are shown.
    """
    start, found = Spent.read(), set[Outcome]()
    left = sorted(edits, key=lambda edit: edit.cost - SOLVED * edit.is_solved)
    while left and len(found) < MAX_REPAIRS and not start.is_over():
        some = screen(block, left, MAX_REPAIRS)
        found |= {one for one in some.values() if isinstance(one, Outcome)}
        yield from some.items()
        left = [edit for edit in left if edit not in some]


def confirm(block: Block, edits: Sequence[Edit]) -> Iterator[Ran]:
    """Yield the edits with which a block runs in a child of its own."""
    for first in range(0, len(edits), MAX_REPAIRS):
        some = edits[first : first + MAX_REPAIRS]
        for edit, outcome in zip(some, run_edited(block, some), strict=True):
            if isinstance(outcome, Outcome):
                yield Ran(edit, outcome)


class Spent(NamedTuple):
    """What was spent before now.

    Attributes:
        of_children: Seconds of processors' time, by children.
        seconds: On the clock.
    """

    of_children: float
    seconds: float

    @staticmethod
    def read() -> "Spent":
        """Return what was spent until now."""
        times = os.times()
        return Spent(times.children_user + times.children_system, monotonic())

    def is_over(self) -> bool:
        """Whether what may be spent was spent since."""
        now = Spent.read()
        is_long = now.seconds - self.seconds > MAX_SECONDS
        return is_long or now.of_children - self.of_children > MAX_OF_CHILDREN


def write_repair(block: Block, ran: Ran, before: int) -> Repair:
    """Return the record of an edit that helped."""
    first, outcome = block.first_line, ran.outcome
    source = apply_edit(block.typed, ran.edit, first)
    old, new = block.typed.split("\n"), source.split("\n")
    words = []
    if outcome.n_parameters != before:
        words.append(f"{outcome.n_parameters:,} parameters instead of {before:,}")
    if outcome.shape is not None:
        words.append(f"ends with {format_shape(outcome.shape)}")
    lines = ran.edit.lines
    return Repair(
        line=lines[0],
        changes=tuple((at, old[at - first], new[at - first]) for at in lines),
        source=source,
        consequence=", ".join(words),
    )
