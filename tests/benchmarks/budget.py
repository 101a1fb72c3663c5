"""Whether anything costs more than it may: counts of calls, not times.

``python -m tests.benchmarks.budget`` counts the calls of Python functions while the
benchmark's cells are recorded, warm and cold, while a model is built under a recording,
and while one is materialized. It fails where they are over 3 % more than in
``budget.json``, and prints what grew. ``--update "why"`` writes the budgets that do not
fit any more, and with ``--all`` the others, too, as is due when files were renamed.
``--instructions`` counts a machine's instructions, and compares nothing.

The calls of meta_magic's own functions are always compared. What they call of C, and
what all of Python calls, depends on versions, and is compared under those of the file.
"""

import argparse
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from tests.benchmarks.budget_cells import NAMES, count_cells
from tests.benchmarks.budget_file import (
    BUDGETS,
    N_KEPT,
    Ledger,
    build_budget,
    read_ledger,
    read_versions,
    write_ledger,
)
from tests.benchmarks.counts import Count, Place
from tests.benchmarks.instructions import print_instructions

TOLERANCE: Final = 0.03
N_LINES: Final = 12
"""Places that are printed of what grew."""

KINDS: Final = {
    "n_own": "calls of meta_magic's functions",
    "n_builtin": "calls of C functions by these",
    "n_total": "calls of Python functions in all",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A cell that costs over 3 % more or less than its budget.

    Attributes:
        cell: Its name.
        kind: Which of ``KINDS``.
        n: What it costs.
        budget: What it may cost.
        growths: The places that make more calls than before, with how many and how
            many there were; the largest first.
    """

    cell: str
    kind: str
    n: int
    budget: int
    growths: tuple[tuple[Place, int, int], ...]

    @property
    def growth(self) -> float:
        """How much more it costs, as a part of the budget."""
        return self.n / self.budget - 1

    @property
    def is_over(self) -> bool:
        """Whether it costs too much, and not too little."""
        return self.n > self.budget


def find_changes(
    count_by_cell: Mapping[str, Count], ledger: Ledger, versions: Mapping[str, str]
) -> Iterator[Change]:
    """Yield what costs over 3 % more or less than its budget."""
    kinds = KINDS if versions == ledger.versions else {"n_own": ""}
    for cell, count in count_by_cell.items():
        budget = ledger.budget_by_cell.get(cell)
        if budget is None:
            continue
        before = ledger.n_by_place_by_cell.get(cell, {})
        for kind in kinds:
            change = Change(
                cell=cell,
                kind=kind,
                n=getattr(count, kind),
                budget=getattr(budget, kind),
                growths=find_growths(kind, count.n_by_place, before),
            )
            if abs(change.n - change.budget) > TOLERANCE * change.budget:
                yield change


def find_growths(
    kind: str, n_by_place: Mapping[Place, int], before: Mapping[Place, int]
) -> tuple[tuple[Place, int, int], ...]:
    """Return the places that make more calls than before, the largest growth first."""
    growths = [
        (place, n - before.get(place, 0), before.get(place, 0))
        for place, n in n_by_place.items()
        if n > before.get(place, 0) and is_counted(place, kind)
        if place in before or n >= N_KEPT
    ]
    return tuple(sorted(growths, key=lambda growth: (-growth[1], growth[0])))


def is_counted(place: Place, kind: str) -> bool:
    """Whether the calls of a place are of a kind."""
    if kind == "n_total":
        return not place.is_builtin
    return bool(place.function) and place.is_builtin == (kind == "n_builtin")


def format_change(change: Change) -> str:
    """Return in words what costs too much, and what grew."""
    head = f"{change.cell}: {change.n:,} {KINDS[change.kind]}"
    lines = [f"{head}, {change.growth:+.1%} of the budget of {change.budget:,}"]
    for place, growth, before in change.growths[:N_LINES]:
        what = "C calls by " if place.is_builtin else ""
        lines.append(
            f"  {growth:+8,}  (of {before:,})  {place.file}  {what}{place.function}"
        )
    n_others = len(change.growths) - N_LINES
    if n_others > 0:
        lines.append(f"  and {n_others} that grew less")
    return "\n".join(lines)


def print_counts(count_by_cell: Mapping[str, Count], ledger: Ledger) -> None:
    """Print all counts as a Markdown table."""
    print(f"| cell | {' | '.join(KINDS.values())} |\n| --- |{' --: |' * len(KINDS)}")
    for cell, count in count_by_cell.items():
        budget = ledger.budget_by_cell.get(cell)
        texts = [f"{getattr(count, kind):,}" for kind in KINDS]
        if budget is not None:
            growths = (getattr(count, k) / getattr(budget, k) - 1 for k in KINDS)
            texts = [f"{t} ({g:+.1%})" for t, g in zip(texts, growths, strict=True)]
        print(f"| {cell} | {' | '.join(texts)} |")


def judge(count_by_cell: Mapping[str, Count], ledger: Ledger) -> bool:
    """Print what does not fit, and return whether anything costs too much."""
    versions = read_versions()
    if versions != ledger.versions:
        print(
            f"\nCounted with {versions}, the budgets with {ledger.versions}: only "
            f"{KINDS['n_own']} are compared, and a model may itself be another now."
        )
    changes = list(find_changes(count_by_cell, ledger, versions))
    over = [change for change in changes if change.is_over]
    for change in over:
        print(f"\n{format_change(change)}")
    unknown = count_by_cell.keys() - ledger.budget_by_cell.keys()
    for cell in sorted(unknown):
        print(f"\n{cell}: has no budget in {BUDGETS.name}")
    if over or unknown:
        print(
            "\nMake it cost less, or raise the budget and say why: "
            'python -m tests.benchmarks.budget --update "why"'
        )
    for change in changes:
        if not change.is_over:
            print(
                f"\n{change.cell}: {change.growth:+.1%} {KINDS[change.kind]}. "
                "Lower the budget with --update, so that it stays so."
            )
    return bool(over or unknown)


def update(
    count_by_cell: Mapping[str, Count],
    ledger: Ledger,
    reason: str,
    *,
    is_for_all: bool = False,
) -> Ledger:
    """Return the budgets, with those renewed that do not fit any more.

    All, where the versions are others. One that fits stays as it is, if not all are
    asked for: or many small growths would go by unseen.
    """
    versions = read_versions()
    changed = {change.cell for change in find_changes(count_by_cell, ledger, versions)}
    if is_for_all or versions != ledger.versions:
        changed = set(count_by_cell)
    before = ledger
    ledger = Ledger(versions=versions, budget_by_cell={}, n_by_place_by_cell={})
    for cell, count in count_by_cell.items():
        budget = before.budget_by_cell.get(cell)
        if budget is None or cell in changed:
            ledger = ledger.with_cell(
                cell, build_budget(count, reason), count.n_by_place
            )
        else:
            calls = before.n_by_place_by_cell.get(cell, {})
            ledger = ledger.with_cell(cell, budget, calls)
    return ledger


def parse_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cells", nargs="+", choices=NAMES, default=NAMES)
    parser.add_argument("--update", metavar="REASON", help="write what does not fit")
    parser.add_argument("--all", action="store_true", help="update what fits, too")
    parser.add_argument("--instructions", action="store_true", help="slow, by hand")
    options = parser.parse_args()
    if options.update is not None and not options.update.strip():
        parser.error("--update wants a reason")
    if options.update and options.cells is not NAMES:
        parser.error("--update counts all cells")
    return options


def main() -> None:
    """Count, print, and compare or write."""
    options = parse_arguments()
    if options.instructions:
        print_instructions()
        return
    count_by_cell = dict(count_cells(options.cells))
    ledger = read_ledger()
    print_counts(count_by_cell, ledger)
    if options.update:
        reason, is_for_all = options.update, options.all
        write_ledger(update(count_by_cell, ledger, reason, is_for_all=is_for_all))
    elif judge(count_by_cell, ledger):
        sys.exit(1)


if __name__ == "__main__":
    main()
