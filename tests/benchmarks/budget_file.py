"""The budgets as they lie beside this file: a line each, and where they were spent."""

import csv
import json
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Final

from tests.benchmarks.counts import Count, Place

BUDGETS: Final = Path(__file__).with_name("budget.json")
CALLS: Final = Path(__file__).with_name("budget_calls.csv")
"""Only to say what grew; nothing is compared with it."""

N_KEPT: Final = 20
"""Places that make fewer calls in each cell are not kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """What a cell may cost.

    Attributes:
        n_own: Calls, as in :class:`Count`.
        n_builtin: The same.
        n_total: The same.
        reason: Why it is as large as it is.
    """

    n_own: int
    n_builtin: int
    n_total: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Ledger:
    """All budgets.

    Attributes:
        versions: Under which they were counted, of Python and of packages.
        budget_by_cell: What each cell may cost.
        n_by_place_by_cell: What each cell cost, place by place, when it got its budget.
    """

    versions: Mapping[str, str]
    budget_by_cell: Mapping[str, Budget]
    n_by_place_by_cell: Mapping[str, Mapping[Place, int]]

    def with_cell(
        self, cell: str, budget: Budget, n_by_place: Mapping[Place, int]
    ) -> "Ledger":
        """Return them with one more."""
        return replace(
            self,
            budget_by_cell={**self.budget_by_cell, cell: budget},
            n_by_place_by_cell={**self.n_by_place_by_cell, cell: n_by_place},
        )


def build_budget(count: Count, reason: str) -> Budget:
    """Return what a cell costs as what it may cost."""
    return Budget(
        n_own=count.n_own,
        n_builtin=count.n_builtin,
        n_total=count.n_total,
        reason=reason,
    )


def read_versions() -> dict[str, str]:
    """Return the versions that decide how many calls others' code makes."""
    major, minor, *_ = sys.version_info
    packages = {
        name: version(name).partition("+")[0] for name in ("torch", "transformers")
    }
    return {"python": f"{major}.{minor}", **packages}


def read_ledger() -> Ledger:
    """Read the budgets; there are none when there is no file."""
    if not BUDGETS.exists():
        return Ledger(versions={}, budget_by_cell={}, n_by_place_by_cell={})
    written = json.loads(BUDGETS.read_text())
    return Ledger(
        versions=written["versions"],
        budget_by_cell={
            cell: Budget(**budget) for cell, budget in written["budgets"].items()
        },
        n_by_place_by_cell=read_calls() if CALLS.exists() else {},
    )


def read_calls() -> dict[str, dict[Place, int]]:
    """Read where the budgets were spent."""
    n_by_place_by_cell: dict[str, dict[Place, int]] = {}
    with CALLS.open(newline="") as lines:
        for row in csv.DictReader(lines):
            place = Place(
                row.pop("file"), row.pop("function"), row.pop("what") == "builtins"
            )
            for cell, n in row.items():
                n_by_place_by_cell.setdefault(cell, {})[place] = int(n)
    return n_by_place_by_cell


def write_ledger(ledger: Ledger) -> None:
    """Write the budgets, each in a line of its own so that a diff shows it."""
    entries = ",\n".join(
        f"    {json.dumps(cell)}: {json.dumps(asdict(budget))}"
        for cell, budget in ledger.budget_by_cell.items()
    )
    versions = json.dumps(ledger.versions)
    BUDGETS.write_text(
        f'{{\n  "versions": {versions},\n  "budgets": {{\n{entries}\n  }}\n}}\n'
    )
    write_calls(ledger.n_by_place_by_cell)


def write_calls(n_by_place_by_cell: Mapping[str, Mapping[Place, int]]) -> None:
    """Write where the budgets were spent, a line for each place."""
    places = {place for calls in n_by_place_by_cell.values() for place in calls}
    with CALLS.open("w", newline="") as lines:
        writer = csv.writer(lines, lineterminator="\n")
        writer.writerow(["file", "function", "what", *n_by_place_by_cell])
        for place in sorted(places):
            numbers = [calls.get(place, 0) for calls in n_by_place_by_cell.values()]
            if max(numbers) >= N_KEPT:
                what = "builtins" if place.is_builtin else "calls"
                writer.writerow([place.file, place.function, what, *numbers])
