"""Repairs of a failed block that were tried: edits with which it runs to its end.

Each is recorded in a child process, from the variables as they were before the block.
"""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from time import monotonic
from typing import Final, NamedTuple

from meta_magic.explain.edited_runs import (
    Block,
    Failure,
    Outcome,
    read_outcome,
    run_edited,
    screen,
)
from meta_magic.explain.edits.edit import Edit, apply_edit
from meta_magic.trace.trace import Trace
from meta_magic.trace.units import format_shape

__all__ = ["Repair", "Tried", "try_edits"]

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
    alone = islice(run_alone(block, likely), MAX_REPAIRS)
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


def run_alone(block: Block, edits: Sequence[Edit]) -> Iterator[Ran]:
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
