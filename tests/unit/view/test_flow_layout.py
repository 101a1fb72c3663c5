"""How the flow of real models is laid out, by the report's own JavaScript."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from meta_magic.view.payload import pack
from tests.browser.gallery import open_shell, record_cells
from tests.browser.gallery_models import CELLS

NODE = shutil.which("node")
CROSSINGS = Path(__file__).parents[2] / "js" / "crossings.mjs"
LEVELS = "2"

pytestmark = pytest.mark.skipif(NODE is None, reason="no Node.js on this machine")


@pytest.fixture(scope="module")
def traces():
    with open_shell() as shell:
        return record_cells(shell, CELLS)


@pytest.mark.parametrize("name", CELLS)
def test_no_wire_runs_through_a_label_or_a_box(traces, tmp_path, name):
    path = tmp_path / "payload"
    path.write_bytes(pack(traces[name]))
    done = subprocess.run(
        [NODE, CROSSINGS, path, LEVELS], capture_output=True, text=True, check=True
    )
    pictures = json.loads(done.stdout)
    assert len(pictures) >= 8  # two directions, two kinds of steps, two levels
    assert {key: found for key, found in pictures.items() if found["crossings"]} == {}
