"""Each folder says what it is for, what it may import, and which file to read first."""

import ast
import re

import pytest

from tests.house import MODULES, PATHS, ROOT, UP, read_graph

ROOMS = [m for m, path in MODULES.items() if path.name == "__init__.py" and m]


def read_room(room):
    """Return the docstring of a room, its lines unwrapped."""
    text = MODULES[room].read_text(encoding="utf-8")
    return ast.get_docstring(ast.parse(text))


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_says_what_it_is_for_and_which_file_to_read_first(room):
    text = read_room(room)
    assert 3 <= len([line for line in text.splitlines() if line]) <= 10
    first = re.search(r"Read\s+``([\w/]+)``", text).group(1)
    beside = MODULES[room].parent / first
    assert beside.is_dir() or beside.with_suffix(".py").exists()


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_imports_what_it_says(room):
    said = re.search(r"[Mm]ay\s+import([^.;]*)", read_room(room)).group(1)
    found = {
        below
        for module, imports in read_graph().items()
        if module.startswith(f"{room}.")
        for below in imports
        if below != room and not below.startswith(f"{room}.")
        if (module, below) not in UP
    }
    if "everything" in said:
        return
    missing = {m for m in found if not any(part in said for part in m.split("."))}
    assert missing == set()


GUIDE = (ROOT.parent / ".github/CONTRIBUTING.md").read_text("utf-8")
"""The guide names files by the end of their path, with a function or class of each."""


@pytest.mark.parametrize(("file", "name"), re.findall(r"`([\w/]+\.py): (\w+)", GUIDE))
def test_what_the_guide_names_is_there(file, name):
    defined = re.compile(rf"^ *(def|class) {name}\b|^{name}\b", re.MULTILINE)
    found = [path for path in PATHS if path.as_posix().endswith(f"/{file}")]
    assert any(defined.search(path.read_text("utf-8")) for path in found)
