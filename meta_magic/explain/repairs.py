"""Repairs of a failed block that were tried: edits with which it runs to its end.

Each is recorded in a child process, from the variables as they were before the block.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from time import monotonic
from typing import Final, NamedTuple

from meta_magic.explain.edited_runs import (
    Block,
    Outcome,
    find_block,
    read_outcome,
    run_edited,
)
from meta_magic.explain.edits import Edit, apply_edit
from meta_magic.trace.trace import Trace
from meta_magic.trace.units import format_shape

__all__ = ["Repair", "try_edits"]

MAX_REPAIRS: Final = 3

MAX_FOUND: Final = 6
"""After how many that run no more edits are tried."""

AT_ONCE: Final = 2

SECONDS_IN_ALL: Final = 1.0

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


def try_edits(trace: Trace, edits: Sequence[Edit]) -> tuple[tuple[Repair, ...], int]:
    """Return the edits with which the block runs, and how many were tried.

    Those come first that change least, and before those that come to the same as an
    earlier one.
    """
    block = find_block(trace)
    if block is None:
        return (), 0
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

    No more are tried when time is up, or enough have helped.
    """
    end = monotonic() + SECONDS_IN_ALL
    found: list[Outcome] = []
    for start in range(0, len(edits), AT_ONCE):
        if monotonic() > end or is_enough(found):
            return
        pair = edits[start : start + AT_ONCE]
        outcomes = run_edited(block, pair)
        found += [outcome for outcome in outcomes if outcome is not None]
        yield from zip(pair, outcomes, strict=True)


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
