"""The import graph of the package: a module imports only from floors below its own."""

import ast
from pathlib import Path

import pytest

import meta_magic

ROOT = Path(meta_magic.__file__).parent
FLOORS = (
    "errors",
    "trace",
    "recording",
    "replaying",
    "materializing",
    "view",
    "magic",
    "",
)
MODULES = sorted(ROOT.rglob("*.py"))


def floor_of(module: str) -> int:
    """Return the floor of a module's name within the package."""
    return FLOORS.index(module.split(".", maxsplit=1)[0])


def imported(path: Path) -> set[str]:
    """Return the package's own modules that a file imports, at whatever depth."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            node.body = [ast.Pass()]
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            names.add(node.module or "")
        elif isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
    own = {name for name in names if name.split(".")[0] == "meta_magic"}
    return {name.removeprefix("meta_magic").lstrip(".") for name in own}


def external(path: Path) -> set[str]:
    """Return the top names of what a file imports."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom):
            names.add((node.module or "").split(".")[0])
        elif isinstance(node, ast.Import):
            names.update(alias.name.split(".")[0] for alias in node.names)
    return names


def name_of(path: Path) -> str:
    """Return a file's module name within the package."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(part for part in parts if part != "__init__")


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_a_module_imports_only_from_its_own_floor_or_below(path):
    floor = floor_of(name_of(path))
    assert {m for m in imported(path) if floor_of(m) > floor} == set()


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_record_and_view_meet_only_in_trace(path):
    module = name_of(path).split(".")[0]
    if module in {"recording", "view"}:
        other = {"recording": "view", "view": "recording"}[module]
        assert not {m for m in imported(path) if m.split(".")[0] == other}


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_ipython_is_imported_in_magic_alone(path):
    is_magic = name_of(path).startswith("magic")
    assert is_magic or "IPython" not in external(path)


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_torch_internals_are_imported_in_one_file_alone(path):
    names = {
        node.module
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ImportFrom) and node.module
        if node.module.startswith("torch.") and "._" in node.module
    }
    assert name_of(path) == "recording.torch_private" or names == set()


def test_the_modules_of_a_floor_import_each_other_without_a_cycle():
    graph = {name_of(path): imported(path) for path in MODULES}
    done: set[str] = set()

    def visit(module: str, above: tuple[str, ...]) -> None:
        assert module not in above, " -> ".join((*above, module))
        if module not in done:
            for below in graph.get(module, ()):
                visit(below, (*above, module))
            done.add(module)

    for module in graph:
        if module:  # the package itself imports on demand
            visit(module, ())
