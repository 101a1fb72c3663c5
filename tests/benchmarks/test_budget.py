"""What costs more than its budget is found, and said."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.benchmarks.budget import find_changes, format_change, update
from tests.benchmarks.budget_file import Budget, Ledger, read_versions
from tests.benchmarks.counts import PACKAGE, Count, Place, count_calls

ROOT = Path(__file__).parents[2]
VERSIONS = {"python": "3.11", "torch": "2.13.0"}
APPEND = Place("meta_magic/rows.py", "Rows.append", is_builtin=False)
FLUSH = Place("meta_magic/rows.py", "Rows.flush", is_builtin=False)

MADE_UP = """
def inner(number):
    return number

def outer():
    numbers = [abs(inner(n)) for n in (1, 2, 3)]
    return len(numbers)
"""


def count_of(n_own, n_by_place=None, n_total=2000):
    return Count(
        n_own=n_own, n_builtin=500, n_total=n_total, n_by_place=n_by_place or {}
    )


def ledger_of(versions=VERSIONS):
    """A cell that may make 1,000 calls of ours, 900 of them of one function."""
    budget = Budget(n_own=1000, n_builtin=500, n_total=2000, reason="As it was.")
    return Ledger(
        versions=versions,
        budget_by_cell={"cell": budget},
        n_by_place_by_cell={"cell": {APPEND: 900, FLUSH: 100}},
    )


def changes_of(count, versions=VERSIONS):
    return list(find_changes({"cell": count}, ledger_of(), versions))


def test_no_cell_costs_more_than_its_budget():
    # In a process of its own, where no other test has run and nobody watches: a
    # measurement of coverage would be counted along.
    environment = {k: v for k, v in os.environ.items() if not k.startswith("COV")}
    finished = subprocess.run(
        [sys.executable, "-m", "tests.benchmarks.budget"],
        check=False,
        cwd=ROOT,
        env={**environment, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    if finished.returncode:
        pytest.fail(finished.stdout + finished.stderr, pytrace=False)


def test_three_percent_more_are_within_a_budget_and_more_are_not():
    assert changes_of(count_of(1030)) == []
    (change,) = changes_of(count_of(1031))
    assert change.is_over


def test_what_costs_less_is_found_and_no_failure():
    (change,) = changes_of(count_of(900))
    assert not change.is_over


def test_what_grew_is_named_with_its_file():
    (change,) = changes_of(count_of(1100, {APPEND: 1000, FLUSH: 100}))
    assert format_change(change) == (
        "cell: 1,100 calls of meta_magic's functions, +10.0% of the budget of 1,000\n"
        "      +100  (of 900)  meta_magic/rows.py  Rows.append"
    )


def test_what_was_too_little_to_be_kept_did_not_grow():
    begin, draw = FLUSH._replace(function="begin"), FLUSH._replace(function="draw")
    (change,) = changes_of(count_of(1100, {APPEND: 900, begin: 19, draw: 20}))
    assert change.growths == ((draw, 20, 0),)


def test_the_calls_of_others_are_compared_under_the_same_versions_alone():
    count = count_of(1000, n_total=4000)
    (change,) = changes_of(count)
    assert change.kind == "n_total"
    assert changes_of(count, {**VERSIONS, "torch": "2.14.0"}) == []


def test_an_update_leaves_alone_what_fits():
    ledger = ledger_of(read_versions())
    counts = {"cell": count_of(1020), "new": count_of(7)}
    updated = update(counts, ledger, "A new cell.")
    assert updated.budget_by_cell["cell"] == ledger.budget_by_cell["cell"]
    assert updated.budget_by_cell["new"].n_own == 7
    for_all = update(counts, ledger, "Renamed.", is_for_all=True)
    assert for_all.budget_by_cell["cell"].n_own == 1020


def test_an_update_renews_what_does_not_fit():
    updated = update({"cell": count_of(1100)}, ledger_of(read_versions()), "It draws.")
    budget = updated.budget_by_cell["cell"]
    assert (budget.n_own, budget.reason) == (1100, "It draws.")


def test_calls_are_counted_by_function_and_those_of_comprehensions_in_it():
    file = PACKAGE / "made_up.py"
    names = {}
    exec(compile(MADE_UP, file, "exec"), names)
    count = count_calls(names["outer"])
    made_up = f"{PACKAGE.name}/made_up.py"
    assert (count.n_own, count.n_builtin) == (1 + 3, 3 + 1)
    assert count.n_by_place[Place(made_up, "inner", is_builtin=False)] == 3
    assert count.n_by_place[Place(made_up, "outer", is_builtin=True)] == 3 + 1
