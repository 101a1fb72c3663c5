"""The import graph of the package: a file imports only from floors below its own.

Every way to import counts: at the top, in a function, under ``TYPE_CHECKING``, and by
``import_module`` or a string that names a module of ours.
"""

import ast
from pathlib import Path

import pytest

import meta_magic

ROOT = Path(meta_magic.__file__).parent
FLOORS = (
    "errors",
    "torch_private",
    "trace",
    "recording.identities",
    "recording.signatures",
    "recording.rows",
    "recording.as_device",
    "recording.intercept",
    "replaying",
    "session",
    "materializing",
    "view",
    "magic",
)
"""From the ground up. Folders inside of a floor are floors of their own, below it."""

UP = {
    ("trace.trace", "magic.reports"): "Trace.show() is for users, who hold a trace",
    ("trace.trace", "view.page"): "Trace.to_html(), as well",
    ("trace.summary", "trace.trace"): "types alone: it formats what Trace hands it",
}
"""The arrows that go up, or round, each with its reason."""

PATHS = sorted(ROOT.rglob("*.py"))


def name_of(path):
    """Return a file's module name within the package."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(part for part in parts if part != "__init__")


MODULES = {name_of(path): path for path in PATHS}
OWN_NAMES = {f"meta_magic.{name}" for name in MODULES}


def floor_of(module):
    """Return the floor of a module, or -1 of the package itself, which is the top."""
    found = [f for f in FLOORS if module == f or module.startswith(f"{f}.")]
    assert found or module in {"", "recording"}, f"{module} is on no floor"
    return FLOORS.index(max(found, key=len)) if found else len(FLOORS)


def find_imports(tree):
    """Yield the full names of the modules that code imports, in whatever way."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            yield node.module or ""
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.Constant) and str(node.value) in OWN_NAMES:
            yield node.value


def find_own_imports(path):
    """Return the package's own modules that a file imports."""
    names = find_imports(ast.parse(path.read_text(encoding="utf-8")))
    own = {name.removeprefix("meta_magic.") for name in names if "meta_magic." in name}
    return {name for name in own if name in MODULES} - {name_of(path)}


GRAPH = {name: find_own_imports(path) for name, path in MODULES.items() if name}


@pytest.mark.parametrize("module", GRAPH)
def test_a_module_imports_only_from_its_own_floor_or_below(module):
    above = {m for m in GRAPH[module] if floor_of(m) > floor_of(module)}
    assert {m for m in above if (module, m) not in UP} == set()


def folder_of(module):
    """Return the folder that a module lies in, and that of the package ""."""
    is_folder = MODULES[module].name == "__init__.py"
    return module if is_folder else module.rpartition(".")[0]


@pytest.mark.parametrize("module", GRAPH)
def test_a_folder_inside_of_a_floor_does_not_import_what_stands_around_it(module):
    """Folders of a room serve it: what they need of the room lies beside or in them."""
    floors = {f for f in FLOORS if module.startswith(f"{f}.")}
    inside = folder_of(module)
    if not floors or inside in floors:
        return
    floor = max(floors, key=len)
    users = {
        m
        for m in GRAPH
        if m.startswith(f"{floor}.")
        and not m.startswith(f"{inside}.")
        and any(i == inside or i.startswith(f"{inside}.") for i in GRAPH[m])
    }
    assert not users & GRAPH[module]


def test_no_circle_is_in_the_house():
    done = set()

    def visit(module, above):
        assert module not in above, " -> ".join((*above, module))
        if module not in done:
            for below in GRAPH[module]:
                if (module, below) not in UP:
                    visit(below, (*above, module))
            done.add(module)

    for module in GRAPH:
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
    for module, imports in GRAPH.items():
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
    assert above in GRAPH[module]


@pytest.mark.parametrize("module", GRAPH)
def test_recording_and_view_meet_only_in_trace(module):
    room = module.split(".", maxsplit=1)[0]
    other = {"recording": "view", "view": "recording"}.get(room, "nowhere")
    assert not {m for m in GRAPH[module] if m.split(".", maxsplit=1)[0] == other}


@pytest.mark.parametrize(
    ("library", "home"),
    [
        ("IPython", "magic"),
        ("anywidget", "view.widgets"),
        ("plotly", "view.charts"),
    ],
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


def test_every_room_says_what_it_is_for():
    for module, path in MODULES.items():
        if path.name == "__init__.py" and module:
            lines = ast.get_docstring(ast.parse(path.read_text("utf-8"))).splitlines()
            assert 3 <= len(lines) <= 14, module
            assert "import" in " ".join(lines), module
            assert "Read " in " ".join(lines), module


# Private names of torch.

OURS = frozenset(
    {
        *("_getframe", "_MEIPASS"),  # Python's own, of sys
        *("_replace", "_fields", "_asdict"),  # of named tuples
        "_render_traceback_",  # IPython's protocol for exceptions
        "_filename_map",  # IPython's compiler, in magic
        "_esm",  # anywidget's protocol
        "_css",
    }
)
"""Names with an underscore that are no private ones of torch."""


def find_private(tree):
    """Yield the private names that code takes from what is not its own."""
    own = {
        node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)
    } | {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and isinstance(node.ctx, ast.Store)
        and isinstance(node.value, ast.Name)
        and node.value.id in {"self", "cls"}
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("torch"):
            parts = node.module.split(".")
            yield from (part for part in parts if is_private(part))
            yield from (a.name for a in node.names if is_private(a.name))
        elif isinstance(node, ast.Attribute) and is_private(node.attr):
            if node.attr not in own:
                yield node.attr
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in LOOKUPS:
            named = node.args[1:2]
            yield from (
                n.value
                for n in named
                if isinstance(n, ast.Constant) and is_private(str(n.value))
            )


LOOKUPS = frozenset({"getattr", "hasattr", "setattr", "attrgetter", "self.replace"})


def is_private(name):
    """Whether a name begins with one underscore."""
    return bool(name.startswith("_") and not name.startswith("__"))


def find_foreign(source):
    """Return the private names in code that are neither its own nor known."""
    return set(find_private(ast.parse(source))) - OURS


@pytest.mark.parametrize("module", [m for m in MODULES if m])
def test_private_names_of_torch_stand_in_one_room_alone(module):
    if not module.startswith("torch_private"):
        assert find_foreign(MODULES[module].read_text(encoding="utf-8")) == set()


@pytest.mark.parametrize(
    "code",
    [
        "import torch\ntorch._C.f()",
        "from torch._C import f",
        "from torch import _meta_registrations",
        "def f(tensor): return tensor.untyped_storage()._cdata",
        "def f(module): return getattr(module, '_parameters', {})",
        "class A:\n    def f(self, library): library._destroy()",
    ],
)
def test_a_private_name_is_seen_wherever_it_stands(code):
    assert find_foreign(code)


def test_a_private_name_of_ones_own_is_none_of_torch():
    code = "class A:\n    def f(self, other):\n        self._x = other._x + self._f()\n"
    assert find_foreign(code + "    def _f(self): return 1\n") == set()
