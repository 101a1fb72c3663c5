"""Repairs of a failed cell that were tried: edits with which it runs to its end.

Each is recorded in a child process, from the variables as they were before the cell.
"""

import ast
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from time import monotonic
from typing import Any, Final

from meta_magic.errors import TrialError
from meta_magic.explain.edits import Edit, apply_edit
from meta_magic.trace.rerun import Rerun
from meta_magic.trace.trace import Trace
from meta_magic.trace.units import format_shape
from meta_magic.trials.trial import ask_trial

__all__ = ["Outcome", "Repair", "read_outcome", "try_edits"]

MAX_REPAIRS: Final = 3

MAX_FOUND: Final = 6
"""After how many that run no more edits are tried."""

SECONDS: Final = 2.0
"""What a trial may take."""

SECONDS_IN_ALL: Final = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Repair:
    """An edit with which a cell runs.

    Attributes:
        line: The line that is changed, of the cell.
        before: That line.
        after: What it becomes.
        source: The whole cell with it.
        consequence: What becomes of parameters and of the last tensor, in words.
    """

    line: int
    before: str
    after: str
    source: str
    consequence: str

    @property
    def diff(self) -> str:
        """The line before and after, as a unified diff has them."""
        return f"-{self.before}\n+{self.after}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What became of a cell.

    Attributes:
        n_parameters: Of all its modules.
        shape: Of the last tensor that it made; None if it made none.
    """

    n_parameters: int
    shape: tuple[int, ...] | None


def try_edits(trace: Trace, edits: Sequence[Edit]) -> tuple[tuple[Repair, ...], int]:
    """Return the edits with which the cell runs, and how many were tried.

    Those come first that change least.
    """
    rerun = trace.rerun
    if rerun is None or rerun.text is None or not trace.source:
        return (), 0
    before, text = count_parameters(trace), rerun.text
    known = [edit for edit in edits if is_as_typed(trace, text, edit)]
    tried = [*run_edits(trace, rerun, text, known)]
    ran = [(edit, outcome) for edit, outcome in tried if outcome is not None]
    ran.sort(key=lambda pair: abs(pair[1].n_parameters - before))
    repairs = (write_repair(trace, edit, outcome, before) for edit, outcome in ran)
    return tuple(repairs)[:MAX_REPAIRS], len(tried)


def is_as_typed(trace: Trace, text: str, edit: Edit) -> bool:
    """Whether the line of an edit is as the user typed it, and IPython left it."""
    typed = trace.source.split("\n")
    at = edit.line - trace.cell.first_line
    return 0 <= at < len(typed) and typed[at] == text.split("\n")[edit.line - 1]


def run_edits(
    trace: Trace, rerun: Rerun, text: str, edits: Sequence[Edit]
) -> Iterator[tuple[Edit, Outcome | None]]:
    """Yield the edits that were tried, and what became of the cell; None if it fails.

    No more are tried when time is up, or enough have helped.
    """
    end, n_found = monotonic() + SECONDS_IN_ALL, 0
    for edit in edits:
        if monotonic() > end or n_found == MAX_FOUND:
            return
        edited = apply_edit(text, edit)
        again = replace(trace, rerun=replace(rerun, text=edited))
        try:
            ast.parse(edited)
            outcome = ask_trial(again, read_outcome, seconds=SECONDS)
        except (TrialError, SyntaxError):
            outcome = None
        n_found += outcome is not None
        yield edit, outcome


def read_outcome(trace: Trace, _: Mapping[str, Any]) -> Outcome:
    """Return what became of a cell; called in the child."""
    last = trace.ops[-1].outputs if len(trace.ops) else ()
    return Outcome(
        n_parameters=count_parameters(trace),
        shape=tuple(last[0].shape) if last else None,
    )


def count_parameters(trace: Trace) -> int:
    """Return the elements of the parameters of all modules of a trace."""
    return sum(root.n_parameters for root in trace.modules)


def write_repair(trace: Trace, edit: Edit, outcome: Outcome, before: int) -> Repair:
    """Return the record of an edit that helped."""
    first = trace.cell.first_line
    source = apply_edit(trace.source, edit, first)
    at = edit.line - first
    words = []
    if outcome.n_parameters != before:
        words.append(f"{outcome.n_parameters:,} parameters instead of {before:,}")
    if outcome.shape is not None:
        words.append(f"ends with {format_shape(outcome.shape)}")
    return Repair(
        line=edit.line,
        before=trace.source.split("\n")[at],
        after=source.split("\n")[at],
        source=source,
        consequence=", ".join(words),
    )
