"""Try edits of a failed block, and keep those with which it runs to its end.

``trace.explanation.repairs`` promises edits that ran. So ``edited_runs`` records the
block with each that comes further, and what may rest on an earlier run is recorded once
more, alone. Read :func:`try_edits` first.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from math import inf
from time import monotonic
from typing import Any, Final, NamedTuple

from meta_magic.children import NO_ANSWER, measure_load
from meta_magic.explain.edited_runs import (
    MAX_WORSE,
    EditableBlock,
    Ended,
    Ending,
    Screened,
    Workers,
    is_whole,
    read_ending,
    run_alone,
)
from meta_magic.explain.edits.program_text import Edit, apply_edit
from meta_magic.trace.trace import Trace
from meta_magic.trace.units import format_shape

AT_ONCE: Final = 2
"""Children that try many edits at the same time."""

MAX_REPAIRS: Final = 3

MAX_ALONE: Final = 6
"""How many edits that seem to help are run once more."""

MAX_OF_CHILDREN: Final = 1.5
"""Processor seconds that all trials may take together, in the children."""

MAX_SECONDS: Final = 4.0
"""Seconds on the clock, for a block that sleeps; longer on a busy machine."""

GROWTH: Final = 0.3
"""The highest cost of a changed number of parameters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Repair:
    """An edit with which a block ran to its end, or to a later error.

    Attributes:
        line: The first line that is changed.
        changes: (line, before, after) of each line that is changed.
        source: The whole cell with the edit, then the cells that are to be run again
            after it; of a file, or of a ``with record()`` in it, the whole file.
        consequence: The change of parameters, and the shape of the last tensor.
        cell: The earlier cell or the file that is changed, as ``In[2]`` or
            ``models/net.py``; "" for the block itself.
        cells: The same for each change; empty if all are of the block itself.
        path: The path of the file; "" for a cell.
        again: Code that runs what rests on a changed file again; "" for a cell.
        then: Which later line fails, and how; "" if the block ran to its end.
    """

    line: int
    changes: tuple[tuple[int, str, str], ...]
    source: str
    consequence: str
    cell: str = ""
    cells: tuple[str, ...] = ()
    path: str = ""
    again: str = ""
    then: str = ""

    @property
    def before(self) -> str:
        """The lines that are changed."""
        return "\n".join(before for _, before, _ in self.changes)

    @property
    def after(self) -> str:
        """The lines after the edit."""
        return "\n".join(after for _, _, after in self.changes)

    @property
    def own_changes(self) -> tuple[tuple[int, str, str], ...]:
        """The changes of the cell or the file, without those of other cells."""
        cells = self.cells or (self.cell,) * len(self.changes)
        pairs = zip(self.changes, cells, strict=True)
        return tuple(change for change, cell in pairs if cell == self.cell)

    @property
    def diff(self) -> str:
        """The lines before and after, as in a unified diff; other cells are named."""
        cells = self.cells or (self.cell,) * len(self.changes)
        parts = []
        for cell, (line, before, after) in zip(cells, self.changes, strict=True):
            head = "" if cell == self.cell else f"{cell or 'the failed cell'}\n"
            parts.append(f"{head}@@ -{line} +{line} @@\n-{before}\n+{after}")
        return "\n".join(parts)


class Ran(NamedTuple):
    """An edit that was tried.

    Attributes:
        is_sure: Whether it is the edit that helped, and no earlier run in the process.
    """

    edit: Edit
    outcome: Any
    is_sure: bool = True


def try_edits(
    trace: Trace, workers: Workers, block: EditableBlock, edits: Sequence[Edit]
) -> tuple[tuple[Repair, ...], int, str]:
    """Return the edits with which a block runs to its end, or else to a later error.

    The likeliest come first; then edits with the same outcome as an earlier one; last
    those that leave a part of the computation out. Return also how many were tried, and
    what stopped another one, such as the sandbox, or "".
    """
    before = read_ending(trace).n_parameters
    allowed = [edit for edit in edits if block.lines.issuperset(edit.lines)]
    tried = [*_screen(workers, block, allowed)]
    passed = [one for one in tried if isinstance(one.outcome, Ending)]
    ran = [one for one in passed if not one.outcome.then]
    ran = ran or [one for one in passed if not one.edit.is_lossy]
    ran.sort(key=lambda one: one.edit.cost + _weigh(one.outcome, before))
    firsts = {one.outcome: one for one in reversed(ran)}
    ran.sort(key=lambda one: firsts[one.outcome] is not one)
    likely = ran[:MAX_ALONE]
    is_later = any(one.outcome.then for one in likely)
    alone = [*islice(_confirm(block, likely, is_later=is_later), MAX_REPAIRS)]
    alone.sort(key=lambda one: one.edit.is_lossy)
    repairs = tuple(_write_repair(block, one, before) for one in alone)
    reasons = (one.outcome for one in tried if isinstance(one.outcome, str))
    return repairs, len(tried), next(filter(None, reasons), "")


def _weigh(outcome: Ending, before: int) -> float:
    """Return the cost of a changed number of parameters."""
    more = abs(outcome.n_parameters - before)
    return GROWTH * min(1.0, more / before) if before else 0.0


def _screen(
    workers: Workers, block: EditableBlock, edits: Sequence[Edit]
) -> Iterator[Ran]:
    """Yield the edits that are tried.

    Code may keep state between two runs in a process; what is not sure is run once more
    by :func:`_confirm`. It stops after some time, or enough different outcomes.
    """
    end, spent = monotonic() + MAX_SECONDS * measure_load(), 0.0
    found, rest = list[Ended](), [*edits]
    while (
        rest
        and len({*found}) < MAX_REPAIRS
        and len(found) < MAX_ALONE
        and monotonic() < end
        and spent < MAX_OF_CHILDREN
    ):
        parts = [part for n in range(AT_ONCE) if (part := rest[n::AT_ONCE])]
        most, done = inf, set[Edit]()
        for part, answer in zip(parts, workers.run(parts), strict=True):
            if answer is NO_ANSWER:  # an edit ended the process, or never ended
                ended = run_alone(block, part[:AT_ONCE])
                answer = Screened(dict(zip(part, ended, strict=False)))  # noqa: PLW2901
            spent += answer.seconds
            for edit, one in answer.ended.items():
                yield Ran(edit, one, answer.is_sure)
                if is_whole(one):
                    found.append(one)
                    most = min(most, edit.cost + MAX_WORSE)
            done |= answer.ended.keys()
        rest = [edit for edit in rest if edit not in done and edit.cost <= most]


def _confirm(
    block: EditableBlock, ran: Sequence[Ran], *, is_later: bool
) -> Iterator[Ran]:
    """Yield the edits with which a block runs in a child of its own.

    If ``is_later``, a later line may fail; else the block must run to its end.
    """
    for first in range(0, len(ran), MAX_REPAIRS):
        some = ran[first : first + MAX_REPAIRS]
        edits = [one.edit for one in some if is_later or not one.is_sure]
        ended = run_alone(block, edits, is_probe=not is_later)
        again = dict(zip(edits, ended, strict=True))
        for one in some:
            outcome = again.get(one.edit, one.outcome)
            if isinstance(outcome, Ending) and (is_later or not outcome.then):
                yield Ran(one.edit, outcome)


def _write_repair(block: EditableBlock, ran: Ran, before: int) -> Repair:
    first, outcome = block.first_line, ran.outcome
    source = apply_edit(block.typed, ran.edit, first)
    old, new = block.typed.split("\n"), source.split("\n")
    consequences = []
    if outcome.n_parameters != before:
        consequences.append(
            f"{outcome.n_parameters:,} parameters instead of {before:,}"
        )
    if outcome.then:
        consequences.append(outcome.then)
    elif outcome.shape is not None:
        consequences.append(f"ends with {format_shape(outcome.shape)}")
    lines = ran.edit.lines
    return Repair(
        line=lines[0],
        changes=tuple((at, old[at - first], new[at - first]) for at in lines),
        source=source,
        consequence=", ".join(consequences),
        then=outcome.then,
    )
