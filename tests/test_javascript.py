"""The report's JavaScript by itself: node runs its tests, and parses what is joined."""

import re
import shutil
import subprocess
from collections import Counter
from pathlib import Path

import pytest
import torch

from meta_magic import record
from meta_magic.view.scripts import (
    IMPORT,
    KINDS,
    STATIC,
    join_scripts,
    list_scripts,
    strip_script,
)
from tests.minified import as_from_a_wheel, count_added

NODE = shutil.which("node")
TSC = shutil.which("tsc")
JS = Path(__file__).parent / "js"
TSCONFIG = JS / "tsconfig.json"
TESTS = sorted(str(path) for path in JS.glob("*.test.mjs"))

MAX_FILE = 600
MAX_FUNCTION = 80
LONG = """function plain() {
  short();
  short();
}
const arrow = () => {
  short();
  short();
};
class Name {
  constructor() {
    short();
    short();
  }
  method() {
    short();
    short();
  }
  field = () => {
    short();
    short();
  };
}
const short = () => [1,
  2];
call(() => {
  short();
  short();
});
"""

pytestmark = pytest.mark.skipif(NODE is None, reason="no Node.js on this machine")

needs_tsc = pytest.mark.skipif(
    TSC is None, reason="no TypeScript compiler on this machine"
)


def run_node(*arguments, program=NODE):
    done = subprocess.run(
        [program, *arguments], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def find_long_functions(n_lines, paths):
    """Return what TypeScript's parser finds, a line for each."""
    typescript = Path(TSC).resolve().parents[1]
    return run_node(JS / "sizes.mjs", typescript, str(n_lines), *paths).strip()


@pytest.mark.parametrize("path", TESTS, ids=lambda path: Path(path).name)
def test_node_runs_the_tests_of_a_file(path):
    run_node("--test", path)


@pytest.mark.parametrize("kind", KINDS)
def test_the_joined_files_are_one_module_without_imports(tmp_path, kind):
    script = join_scripts(kind)
    assert not re.search(r"^(import|export) ", script, re.MULTILINE)
    (tmp_path / "report.mjs").write_text(script, "utf-8")
    run_node("--check", tmp_path / "report.mjs")


@pytest.mark.parametrize("kind", KINDS)
def test_no_name_stands_twice_at_the_top_of_the_joined_files(kind):
    files = list_scripts(STATIC / f"{kind}.js")
    found = Counter(
        name
        for file in files
        for name in re.findall(
            r"^(?:export )?(?:async )?(?:function\*?|const|let|class) (\w+)",
            file.read_text("utf-8"),
            re.MULTILINE,
        )
    )
    assert found
    assert [name for name, n in found.items() if n > 1] == []


def test_every_file_is_joined():
    joined = {path for kind in KINDS for path in list_scripts(STATIC / f"{kind}.js")}
    assert joined == set(STATIC.rglob("*.js"))


@pytest.mark.parametrize("kind", KINDS)
def test_each_file_stands_behind_those_that_it_uses(kind):
    listed = list_scripts(STATIC / f"{kind}.js")
    assert len(listed) == len(set(listed))
    for at, path in enumerate(listed):
        used = {path.parent / name for name in IMPORT.findall(path.read_text("utf-8"))}
        assert {file.resolve() for file in used} <= set(listed[:at])


def test_the_script_can_stand_in_a_page():
    assert "</" not in join_scripts("live")


def test_no_file_is_long():
    paths = [*STATIC.rglob("*.js"), *JS.glob("*.mjs")]
    n_lines = {path.name: len(path.read_text("utf-8").splitlines()) for path in paths}
    assert {name: n for name, n in n_lines.items() if n > MAX_FILE} == {}


@needs_tsc
def test_no_function_is_long():
    paths = sorted(map(str, [*STATIC.rglob("*.js"), *JS.glob("*.mjs")]))
    assert find_long_functions(MAX_FUNCTION, paths) == ""


@needs_tsc
def test_a_long_function_of_any_kind_is_found(tmp_path):
    path = tmp_path / "long.mjs"
    path.write_text(LONG, "utf-8")
    found = find_long_functions(3, [path]).replace(f"{path}: ", "").splitlines()
    assert found == [
        *("plain: 4 lines", "arrow: 4 lines", "Constructor: 4 lines"),
        *("method: 4 lines", "field: 4 lines", "ArrowFunction: 4 lines"),
    ]


def test_no_text_is_longer_than_its_line():
    # What begins a line is taken out of the joined script, even in a text.
    lines = join_scripts("live").splitlines()
    assert [line for line in lines if line.count("`") % 2] == []


@needs_tsc
def test_the_types_are_right():
    run_node("--project", TSCONFIG, program=TSC)


def test_all_pictures_of_operations_take_15_kb():
    scripts = (STATIC / "pictures").glob("*.js")
    assert sum(len(strip_script(path).encode()) for path in scripts) < 15_000


def test_a_saved_cell_does_not_grow():
    # What a wheel adds to each cell above its payload and its plain tree; below what it
    # weighs now, this number goes down with it.
    with record() as trace:
        torch.zeros(2)
    with as_from_a_wheel():
        assert count_added(trace) < 76_200
