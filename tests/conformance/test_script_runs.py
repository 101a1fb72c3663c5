"""What comes of cells that are run in a process of their own."""

import pytest

from tests.conformance.script_runs import CRASHED, LATE, Limits, Script, run_cells
from tests.conformance.script_sweep import check

LIMITS = Limits(20.0, 16 * 2**30)


@pytest.fixture
def make_script(tmp_path):
    """Return a function that makes a script of cells."""

    def make(*cells):
        folder = tmp_path / "folder"
        folder.mkdir()
        (folder / "numbers.txt").write_text("3", encoding="utf-8")
        return Script(folder, folder / "script.py", cells)

    return make


def test_what_a_cell_prints_and_shows_is_its_text(make_script):
    outcomes = run_cells(make_script("print(1)\n2"), LIMITS, recorded=False)
    assert [o.text.split() for o in outcomes] == [["1", "Out[1]:", "2"]]


def test_a_cell_that_fails_does_not_end_the_next(make_script):
    outcomes = run_cells(make_script("x = 1\n1 / 0", "x"), LIMITS, recorded=False)
    assert [o.error for o in outcomes] == ["ZeroDivisionError: division by zero", ""]
    assert outcomes[0].place.startswith("2: 1 / 0")


def test_a_cell_under_meta_is_recorded(make_script):
    script = make_script("import torch\nprint(torch.ones(2).is_meta)")
    (outcome,) = run_cells(script, LIMITS, recorded=True)
    assert (outcome.error, outcome.text) == ("", "True\n")


def test_a_cell_that_takes_too_long_is_the_last(make_script):
    script = make_script("1", "while True:\n    pass", "2")
    outcomes = run_cells(script, LIMITS._replace(seconds=1.0), recorded=False)
    assert [o.error for o in outcomes] == ["", LATE]


def test_a_cell_that_waits_is_not_late(make_script):
    script = make_script("import time\ntime.sleep(1.5)", "2")
    outcomes = run_cells(script, LIMITS._replace(seconds=1.0), recorded=False)
    assert [o.error for o in outcomes] == ["", ""]


def test_a_cell_that_ends_the_process_is_the_last(make_script):
    script = make_script("1", "import os\nos._exit(1)", "2")
    outcomes = run_cells(script, LIMITS, recorded=False)
    assert [o.error for o in outcomes] == ["", CRASHED]


def test_a_cell_with_more_memory_than_it_may_take_fails(make_script):
    script = make_script("import numpy\nnumpy.ones(2**33)")
    (outcome,) = run_cells(script, LIMITS, recorded=False)
    assert "MemoryError" in outcome.error


def test_no_run_meets_the_files_of_another(make_script):
    cell = "from pathlib import Path\np = Path('numbers.txt')\nn = int(p.read_text())"
    script = make_script(f"{cell}\np.write_text(str(n + 1))\nn")
    texts = [
        run_cells(script, LIMITS, recorded=recorded)[0].text for recorded in (0, 1)
    ]
    assert "3" in texts[0]
    assert texts[0] == texts[1]


def test_both_runs_begin_with_the_same_random_numbers(make_script):
    script = make_script("import torch, random\nprint(torch.rand(2), random.random())")
    assert [cell.found for cell in check(script, LIMITS)] == ["same"]


def test_only_what_runs_for_real_is_counted(make_script):
    found = check(make_script("print(1)", "1 / 0", "print(2)"), LIMITS)
    assert [(cell.number, cell.found) for cell in found] == [(0, "same"), (2, "same")]


def test_a_cell_that_prints_another_value_under_meta_is_found(make_script):
    (cell,) = check(make_script("import torch\nprint(torch.ones(1).is_meta)"), LIMITS)
    assert (cell.found, cell.reason) == ("other", "'False' is 'True'")


def test_a_cell_that_only_fails_under_meta_is_refused(make_script):
    cells = ("import torch\nassert not torch.ones(1).is_meta",)
    (cell,) = check(make_script(*cells), LIMITS)
    assert (cell.found, cell.reason) == ("refused", "AssertionError:")


def test_a_cell_that_takes_too_long_for_real_is_not_counted(make_script):
    long = "import torch\nif not torch.ones(1).is_meta:\n    while True:\n        pass"
    found = check(make_script("1", long, "2"), LIMITS._replace(seconds=1.0))
    assert [(cell.number, cell.found) for cell in found] == [(0, "same")]
