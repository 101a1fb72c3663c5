"""The report's JavaScript by itself: node runs its tests, and parses what is joined."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from meta_magic.view.page import SCRIPTS, join_scripts

NODE = shutil.which("node")
TSC = shutil.which("tsc")
TSCONFIG = Path(__file__).parent / "js" / "tsconfig.json"
TESTS = sorted(str(path) for path in Path(__file__).parent.glob("js/*.test.mjs"))

pytestmark = pytest.mark.skipif(NODE is None, reason="no Node.js on this machine")


def run_node(*arguments, program=NODE):
    done = subprocess.run(
        [program, *arguments], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("path", TESTS, ids=lambda path: Path(path).name)
def test_node_runs_the_tests_of_a_file(path):
    run_node("--test", path)


def test_the_joined_files_are_one_module_without_imports(tmp_path):
    script = join_scripts()
    assert not re.search(r"^(import|export) ", script, re.MULTILINE)
    (tmp_path / "report.mjs").write_text(script, "utf-8")
    run_node("--check", tmp_path / "report.mjs")


def test_every_file_is_joined():
    static = Path(__file__).parents[1] / "meta_magic" / "view" / "static"
    assert {path.stem for path in static.glob("*.js")} == set(SCRIPTS)


def test_the_script_can_stand_in_a_page():
    assert "</" not in join_scripts()


@pytest.mark.skipif(TSC is None, reason="no TypeScript compiler on this machine")
def test_the_types_are_right():
    run_node("--project", TSCONFIG, program=TSC)


def test_the_script_does_not_grow():
    # The goal is 60 KB; below what it weighs now, this number goes down with it.
    assert len(join_scripts().encode()) < 76_500
