"""Scripts in the style of tutorials of 2017 to 2020, for real and under ``%%meta``."""

from pathlib import Path

import pytest

from tests.conformance.script_cells import read_cells
from tests.conformance.script_runs import Limits, Script, run_cells
from tests.conformance.script_sweep import check

FOLDER = Path(__file__).parent / "scripts"
LIMITS = Limits(60.0, 16 * 2**30)

each_script = pytest.mark.parametrize(
    "path", sorted(FOLDER.glob("*.py")), ids=lambda path: path.stem
)


def read_script(path):
    return Script(FOLDER, path, tuple(read_cells(path)))


@each_script
def test_a_script_runs_for_real_and_prints(path):
    (outcome,) = run_cells(read_script(path), LIMITS, recorded=False)
    assert outcome.error == ""
    assert outcome.text


# Of torch's own, which it gives for real as well.
@pytest.mark.filterwarnings("default:Converting a tensor with requires_grad")
@each_script
def test_a_script_prints_under_meta_what_it_prints_for_real(path):
    (cell,) = check(read_script(path), LIMITS)
    assert (cell.found, cell.reason) == ("same", "")
