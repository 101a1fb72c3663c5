"""The import graph of the package: a file imports only from floors below its own."""

import ast

import pytest

from tests.house import (
    FLOORS,
    MODULES,
    UP,
    find_imports,
    floor_of,
    is_literal,
    read_graph,
)


def test_a_module_imports_only_from_its_own_floor_or_below():
    arrows = {(module, m) for module, imports in read_graph().items() for m in imports}
    assert {(a, b) for a, b in arrows if floor_of(b) > floor_of(a)} <= {*UP}


def folder_of(module):
    """Return the folder that a module lies in, and that of the package ""."""
    is_folder = MODULES[module].name == "__init__.py"
    return module if is_folder else module.rpartition(".")[0]


def test_a_folder_inside_of_a_floor_does_not_import_what_stands_around_it():
    """Folders of a room serve it: what they need of the room lies beside or in them."""
    found = {module: find_surroundings(module) for module in read_graph()}
    assert {module: names for module, names in found.items() if names} == {}


def find_surroundings(module):
    """Return what a module of an inner folder imports that itself uses that folder."""
    floors = {f for f in FLOORS if module.startswith(f"{f}.")}
    inside = folder_of(module)
    if not floors or inside in floors:
        return set()
    floor = max(floors, key=len)
    users = {
        m
        for m in read_graph()
        if m.startswith(f"{floor}.")
        and not m.startswith(f"{inside}.")
        and any(i == inside or i.startswith(f"{inside}.") for i in read_graph()[m])
    }
    return users & read_graph()[module]


def test_no_circle_is_in_the_house():
    done = set()

    def visit(module, above):
        assert module not in above, " -> ".join((*above, module))
        if module not in done:
            for below in read_graph()[module]:
                if (module, below) not in UP:
                    visit(below, (*above, module))
            done.add(module)

    for module in read_graph():
        visit(module, ())


def rooms_of(module, below):
    """Return the two folders by which an arrow leaves one room for another."""
    here, there = folder_of(module).split("."), folder_of(below).split(".")
    depth = next(
        (
            i
            for i, pair in enumerate(zip(here, there, strict=False))
            if len({*pair}) > 1
        ),
        min(len(here), len(there)),
    )
    return ".".join(here[: depth + 1]), ".".join(there[: depth + 1])


def test_no_circle_is_between_the_rooms():
    graph = {}
    for module, imports in read_graph().items():
        for below in imports:
            room, other = rooms_of(module, below)
            is_apart = not (other.startswith(room) or room.startswith(other))
            if is_apart and (module, below) not in UP:
                graph.setdefault(room, set()).add(other)
    done = set()

    def visit(room, above):
        assert room not in above, " -> ".join((*above, room))
        if room not in done:
            for below in graph.get(room, ()):
                visit(below, (*above, room))
            done.add(room)

    for room in graph:
        visit(room, ())


@pytest.mark.parametrize("arrow", UP, ids=" -> ".join)
def test_each_arrow_that_is_declared_is_there(arrow):
    module, above = arrow
    assert above in read_graph()[module]


def test_recording_and_view_meet_only_in_trace():
    rooms = {
        (module.split(".", maxsplit=1)[0], m.split(".", maxsplit=1)[0])
        for module, imports in read_graph().items()
        for m in imports
    }
    assert not rooms & {("recording", "view"), ("view", "recording")}


@pytest.mark.parametrize(
    ("library", "home"),
    [("IPython", "magic"), ("anywidget", "view.widgets"), ("plotly", "view.charts")],
)
def test_a_library_is_imported_in_one_place_alone(library, home):
    users = {
        name
        for name, path in MODULES.items()
        for imported in find_imports(ast.parse(path.read_text(encoding="utf-8")))
        if imported.split(".", maxsplit=1)[0] == library
    }
    assert users
    assert {name for name in users if not name.startswith(home)} == set()


def test_a_module_is_imported_by_a_name_that_is_written():
    for module in read_graph():
        tree = ast.parse(MODULES[module].read_text(encoding="utf-8"))
        calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
        assert all(map(is_literal, calls)), module


def test_no_two_files_have_one_name():
    names = [path.name for path in MODULES.values() if path.name != "__init__.py"]
    assert sorted(set(names)) == sorted(names)
