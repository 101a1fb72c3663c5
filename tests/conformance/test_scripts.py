"""Scripts in the style of tutorials of 2017 to 2020, for real and under ``%%meta``."""

from pathlib import Path

import pytest

from tests.conformance.script_cells import read_cells
from tests.conformance.script_runs import Limits, Script
from tests.conformance.script_sweep import check

FOLDER = Path(__file__).parent / "scripts"
LIMITS = Limits(60.0, 16 * 2**30)

each_script = pytest.mark.parametrize(
    "path", sorted(FOLDER.glob("*.py")), ids=lambda path: path.stem
)


def read_script(path):
    return Script(FOLDER, path, tuple(read_cells(path)))


# Of torch's own, which it gives for real as well.
@pytest.mark.filterwarnings("default:Converting a tensor with requires_grad")
@each_script
def test_a_script_prints_under_meta_what_it_prints_for_real(path):
    (cell,) = check(read_script(path), LIMITS)
    assert (cell.found, cell.reason) == ("same", "")


@pytest.mark.parametrize(
    ("cell", "outcome"),
    [
        ("print(torch.ones(1).is_meta)", ("other", "'False' is 'True'")),
        ("assert not torch.ones(1).is_meta", ("refused", "AssertionError:")),
        ("print(torch.rand(2))", ("same", "")),
    ],
)
def test_a_cell_that_differs_under_meta_is_found(cell, outcome, tmp_path):
    script = Script(tmp_path, tmp_path / "script.py", (f"import torch\n{cell}",))
    assert [(cell.found, cell.reason) for cell in check(script, LIMITS)] == [outcome]
