"""Repairs of a failed block that were tried: edits with which it runs to its end.

Each is recorded in a child process, from the variables as they were before the block.
"""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from time import monotonic
from typing import Final, NamedTuple

from meta_magic.explain.edited_runs import (
    Block,
    Outcome,
    read_outcome,
    run_edited,
    screen,
)
from meta_magic.explain.edits.edit import Edit, apply_edit
from meta_magic.trace.trace import Trace
from meta_magic.trace.units import format_shape

__all__ = ["Repair", "try_edits"]

MAX_REPAIRS: Final = 3

MAX_FOUND: Final = 6
"""After how many that run no more edits are tried."""

N_FIRST: Final = 4

N_SCREENED: Final = 16

MAX_SECONDS: Final = 2.0
MAX_OF_CHILDREN: Final = 1.0
"""What trials may take: on the clock, and of processors' time."""

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


def try_edits(
    trace: Trace, block: Block, edits: Sequence[Edit]
) -> tuple[tuple[Repair, ...], int]:
    """Return the edits with which a block runs, and how many were tried.

    Those come first that change least, and before those that come to the same as an
    earlier one.
    """
    before = read_outcome(trace).n_parameters
    allowed = [edit for edit in edits if block.lines.issuperset(edit.lines)]
    tried = [*run_in_order(block, allowed)]
    ran = [Ran(edit, outcome) for edit, outcome in tried if outcome is not None]
    ran.sort(key=lambda one: one.edit.cost + weigh(one.outcome, before))
    firsts = {one.outcome: one for one in reversed(ran)}
    ran.sort(key=lambda one: firsts[one.outcome] is not one)
    repairs = (write_repair(block, one, before) for one in ran[:MAX_REPAIRS])
    return tuple(repairs), len(tried)


def weigh(outcome: Outcome, before: int) -> float:
    """Return what it counts that the number of parameters is another than before."""
    more = abs(outcome.n_parameters - before)
    return GROWTH * min(1.0, more / before) if before else 0.0


def run_in_order(
    block: Block, edits: Sequence[Edit]
) -> Iterator[tuple[Edit, Outcome | None]]:
    """Yield the edits that were tried, and what became of the block; None if it fails.

    The likeliest are run at once, of the others those that pass a screening. No more
    are tried when time is up, or enough have helped.
    """
    start, first, found = Spent.read(), 0, list[Outcome]()
    while first < len(edits) and not is_enough(found) and not start.is_over():
        last = first + (N_SCREENED if first else N_FIRST)
        some = edits[first:last]
        kept = screen(block, some) if first else some
        outcomes = dict(zip(kept, run_edited(block, kept), strict=True))
        found += [outcome for outcome in outcomes.values() if outcome is not None]
        yield from ((edit, outcomes.get(edit)) for edit in some)
        first = last


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


def is_enough(found: Sequence[Outcome]) -> bool:
    """Whether enough edits have helped: as many as are shown, each in its own way."""
    return len(set(found)) >= MAX_REPAIRS or len(found) >= MAX_FOUND


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
