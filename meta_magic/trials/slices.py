"""The statements of earlier cells, and the modules of the user, that a block rests on.

A notebook defines a class in one cell, builds the model in the next, and calls it in a
third. If the call fails, the mistake is often in the first. So the statements of
earlier cells that bind what the block reads are put before its text, and the whole is
recorded again as one block: whatever explains a block then explains a notebook. Read
:func:`join_slice` first.
"""

import ast
import importlib.util
import linecache
import re
import site
import symtable
import sys
import sysconfig
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from types import ModuleType
from typing import Final, NamedTuple, TypeGuard

from meta_magic.trace.earlier_cells import EarlierCell
from meta_magic.trace.rerun import ModuleText, Rerun, keep, list_names
from meta_magic.trace.trace import Trace

MAX_CELLS: Final = 200
"""How many cells back the statements are looked for."""

MAX_MODULES: Final = 20
MAX_LINES: Final = 20_000
"""How many modules of the user, and how many lines, the whole text may have."""

MAX_SECONDS: Final = 5.0
"""Processor time of a cell above which only what it defines is run again."""

FILE: Final = "<cells>"
"""The file name under which the whole text runs."""

UNREPEATABLE: Final = re.compile(
    r"^(exec|eval|input|get_ipython)$|(^|\.)(open|system|Popen|check_output|urlopen"
    r"|urlretrieve|download\w*|from_pretrained|load|load_dataset|load_state_dict_from_url"
    r"|read_\w+|genfromtxt|loadtxt|imread|save|savefig|show|sleep)$"
    r"|^(plt|sns|px|subprocess|requests|shutil|os|wandb|datasets|torchvision\.datasets)\."
)
"""Functions, by their dotted names, whose calls are not made again."""

SILENT: Final = frozenset({"print", "display", "len", "repr", "str", "type", "help"})
"""Functions that change none of their arguments."""

SCOPES: Final = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
IMPORTS: Final = (ast.Import, ast.ImportFrom)
DEFINITE: Final = (*SCOPES, *IMPORTS, ast.Assign, ast.AnnAssign)


class Statement(NamedTuple):
    """A statement at the top level of a cell.

    Attributes:
        cell: Index of the cell.
        first: Its first line there, with decorators.
        last: Its last line.
        binds: The names that it binds.
        changes: The names whose objects it may change.
        reads: The names that it reads at once.
        defers: The names that its functions read when they are called.
        is_definite: Whether it always binds its names.
        is_repeatable: Whether it may run again.
    """

    cell: int
    first: int
    last: int
    binds: frozenset[str]
    changes: frozenset[str]
    reads: frozenset[str]
    defers: frozenset[str]
    is_definite: bool
    is_repeatable: bool


class Part(NamedTuple):
    """A cell or a file in the whole text.

    Attributes:
        name: What messages call it: ``In[2]``, ``models/net.py``; "" for the block.
        first: Its first line in the whole text, from 1.
        typed: The text as the user typed it.
        path: Path of a file; "" for a cell.
    """

    name: str
    first: int
    typed: str
    path: str = ""


class Slice(NamedTuple):
    """A block with all that it rests on, as one block.

    Attributes:
        rerun: What a run of the whole needs.
        parts: Modules, then cells, then the block itself.
        kept: Names of variables whose values are used as they are: the code that made
            them is not run again.
    """

    rerun: Rerun
    parts: tuple[Part, ...]
    kept: tuple[str, ...]

    @property
    def typed(self) -> str:
        """The whole text as the user typed it."""
        return "\n".join(part.typed for part in self.parts)

    def find(self, line: int) -> tuple[Part, int]:
        """Return the part that has a line, and the line's number in it."""
        part = [one for one in self.parts if one.first <= line][-1]
        return part, line - part.first + 1

    def say(self, line: int) -> str:
        """Return a line as messages say it: ``line 3``, or ``In[2], line 6``."""
        part, own = self.find(line)
        return f"{part.name}, line {own}" if part.name else f"line {own}"


def join_slice(trace: Trace) -> Slice | None:
    """Return a trace's block with the statements before it that it rests on.

    Returns:
        None where it rests on none, or where they are not known.
    """
    rerun = trace.rerun
    if rerun is None or rerun.text is None:
        return None
    typed = (
        trace.cell.head + trace.source if trace.cell.first_line > 1 else trace.source
    )
    own = EarlierCell("", typed, read=lambda _: rerun.text or "")
    cells = [*rerun.earlier[-MAX_CELLS:], own]
    texts = [cell.read(cell.typed) for cell in cells]
    statements = [
        one._replace(cell=number)
        for number, (cell, text) in enumerate(zip(cells, texts, strict=True))
        for one in read_statements(text, is_long=cell.seconds > MAX_SECONDS)
    ]
    chosen, kept = choose_statements(statements, len(cells) - 1)
    blanked = [_blank(text, number, chosen) for number, text in enumerate(texts)]
    pairs = zip(cells, blanked, strict=True)
    used = [(cell, text) for cell, text in pairs if text.strip() or cell is own]
    modules = [*find_modules("\n".join(text for _, text in used))]
    if len(used) == 1 and not modules:
        return None
    return _join(rerun, modules, used, kept)


def _join(
    rerun: Rerun,
    modules: Sequence[ModuleType],
    used: Sequence[tuple[EarlierCell, str]],
    kept: Iterable[str],
) -> Slice | None:
    """Return modules and cells as one block; None if they are too long."""
    parts, texts, spans, line = [], [], [], 1
    for module in modules:
        path = str(module.__file__)
        text = "".join(linecache.getlines(path)).rstrip("\n")
        parts.append(Part(shorten_path(path), line, text, path))
        texts.append(text)
        spans.append(ModuleText(module.__name__, line, line + text.count("\n")))
        line = spans[-1].last + 1
    n_before = line - 1
    for cell, text in used:
        typed = cell.typed.rstrip("\n").split("\n")
        lines = text.rstrip("\n").split("\n")
        n_lines = max(len(typed), len(lines))
        texts.append("\n".join(lines + [""] * (n_lines - len(lines))))
        both = "\n".join(typed + [""] * (n_lines - len(typed)))
        parts.append(Part(cell.name, line, both))
        line += n_lines
    whole = "\n".join(texts)
    try:
        own = ast.parse("\n" * n_before + "\n".join(texts[len(modules) :]))
        names = list_names(compile(own, FILE, "exec"))
    except (SyntaxError, ValueError):
        return None
    if line > MAX_LINES:
        return None
    variables = vars(sys.modules[rerun.module])
    others = {n: keep(variables[n]) for n in names if n in variables}
    joined = replace(
        rerun,
        text=whole,
        file=FILE,
        names=names,
        before={**others, **rerun.before},
        modules=tuple(spans),
    )
    return Slice(joined, tuple(parts), tuple(kept))


def _blank(text: str, cell: int, chosen: Sequence[Statement]) -> str:
    """Return a cell's text with the lines of chosen statements; others are empty."""
    own = [one for one in chosen if one.cell == cell]
    lines = {n for one in own for n in range(one.first, one.last + 1)}
    listed = enumerate(text.split("\n"), 1)
    return "\n".join(line if n in lines else "" for n, line in listed)


def choose_statements(
    statements: Sequence[Statement], block: int
) -> tuple[list[Statement], list[str]]:
    """Return the statements that a block rests on, with its own, in order.

    Args:
        statements: Those of all cells, in the order in which they ran.
        block: Index of the block's cell; all its statements are chosen.

    Returns:
        The statements, and the names of variables whose code is not run again.
    """
    deferred: set[str] = set()
    while True:
        needed, chosen, found = set(deferred), [], set(deferred)
        kept: list[str] = []
        for one in reversed(statements):
            is_own = one.cell == block
            is_wanted = not needed.isdisjoint(one.binds | one.changes)
            if not is_own and not is_wanted:
                continue
            if not is_own and not one.is_repeatable:
                kept += sorted(needed & (one.binds | one.changes))
                needed -= one.binds | one.changes
                continue
            chosen.append(one)
            if one.is_definite:
                needed -= one.binds
            needed |= one.reads | one.defers
            found |= one.defers
        if found == deferred:
            return chosen[::-1], list(dict.fromkeys(kept))
        deferred = found


@lru_cache(MAX_CELLS)
def read_statements(text: str, *, is_long: bool) -> tuple[Statement, ...]:
    """Return the statements of a cell; a cell that is no Python has none.

    Args:
        text: The cell.
        is_long: Whether it took long.
    """
    try:
        return tuple(_read_statement(one, is_long) for one in ast.parse(text).body)
    except (SyntaxError, ValueError):
        return ()


def _read_statement(node: ast.stmt, is_long: bool) -> Statement:  # noqa: FBT001
    names = [one for one in ast.walk(node) if isinstance(one, ast.Name)]
    stored = {one.id for one in names if not isinstance(one.ctx, ast.Load)}
    calls = [one for one in ast.walk(node) if isinstance(one, ast.Call)]
    changes = {_root(one) for one in ast.walk(node) if _is_change(one)}
    if isinstance(node, SCOPES):
        binds, changes, calls = {node.name}, set(), []
    elif isinstance(node, IMPORTS):
        binds = {(a.asname or a.name).partition(".")[0] for a in node.names}
    else:
        defined = (one for one in ast.walk(node) if isinstance(one, SCOPES))
        binds = stored | {one.name for one in defined}
        changes |= set(_list_arguments(node))
    reads, defers = _list_reads(node)
    is_cheap = isinstance(node, (*SCOPES, *IMPORTS)) or not calls
    dotted = (ast.unparse(call.func) for call in calls)
    is_refused = any(map(UNREPEATABLE.search, dotted))
    decorators = getattr(node, "decorator_list", [])
    return Statement(
        cell=0,
        first=min(one.lineno for one in (node, *decorators)),
        last=node.end_lineno or node.lineno,
        binds=frozenset(binds),
        changes=frozenset(changes - {""}),
        reads=reads,
        defers=defers,
        is_definite=isinstance(node, DEFINITE),
        is_repeatable=not is_refused and (is_cheap or not is_long),
    )


def _is_change(node: ast.AST) -> bool:
    """Whether an expression changes an object: a write to an attribute or an item."""
    is_part = isinstance(node, (ast.Attribute, ast.Subscript))
    return is_part and not isinstance(node.ctx, ast.Load)  # type: ignore[attr-defined]


def _root(node: ast.AST) -> str:
    """Return the name that an expression begins with: ``model`` of ``model.fc[0]``."""
    while isinstance(node, (ast.Attribute, ast.Subscript, ast.Call)):
        node = node.func if isinstance(node, ast.Call) else node.value
    return node.id if isinstance(node, ast.Name) else ""


def _list_arguments(node: ast.AST) -> Iterator[str]:
    """Yield the names whose objects calls for their effect may change."""
    for one in ast.walk(node):
        if not isinstance(one, ast.Expr) or not isinstance(one.value, ast.Call):
            continue
        call = one.value
        if _root(call.func) in SILENT:
            continue
        if isinstance(call.func, ast.Attribute):
            yield _root(call.func)
        yield from map(_root, call.args)
    loops = (one for one in ast.walk(node) if isinstance(one, ast.For))
    for loop in loops:  # over what a model holds, which its body may change
        yield from (n.id for n in ast.walk(loop.iter) if isinstance(n, ast.Name))


def _list_reads(node: ast.stmt) -> tuple[frozenset[str], frozenset[str]]:
    """Return the names that a statement reads at once, and those in its functions."""
    try:
        table = symtable.symtable(ast.unparse(node), FILE, "exec")
    except SyntaxError:  # an await, a return
        return frozenset(), frozenset()
    reads = {one.get_name() for one in table.get_symbols() if one.is_referenced()}
    defers: set[str] = set()
    todo = [*table.get_children()]
    while todo:
        inner = todo.pop()
        todo += inner.get_children()
        found = {s.get_name() for s in inner.get_symbols() if s.is_global()}
        (defers if inner.get_type() == "function" else reads).update(found)
    return frozenset(reads), frozenset(defers)


def find_modules(text: str) -> Iterator[ModuleType]:
    """Yield the modules of the user that a text imports, those that they import first.

    A module whose file was changed since it was imported is left out.
    """
    found: dict[str, ModuleType] = {}

    def visit(code: str, package: str) -> None:
        for name in list_imported(code, package):
            module = sys.modules.get(name)
            if name in found or len(found) > MAX_MODULES or not is_own(module):
                continue
            found[name] = module  # a circle ends here
            lines = linecache.getlines(str(module.__file__))
            visit("".join(lines), str(module.__package__ or ""))
            found[name] = found.pop(name)

    visit(text, "")
    yield from found.values()


def list_imported(code: str, package: str) -> list[str]:
    """Return the full names of modules that a text may import."""
    try:
        nodes = [one for one in ast.walk(ast.parse(code)) if isinstance(one, IMPORTS)]
    except SyntaxError:
        return []
    names: list[str] = []
    for node in nodes:
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
            continue
        dots = "." * node.level + (node.module or "")
        try:
            base = importlib.util.resolve_name(dots, package) if node.level else dots
        except ImportError:
            continue
        names += [base, *(f"{base}.{alias.name}" for alias in node.names)]
    parents = [
        name.rsplit(".", n)[0] for name in names for n in range(name.count("."), 0, -1)
    ]
    return [*dict.fromkeys([*parents, *names])]


def is_own(module: object) -> TypeGuard[ModuleType]:
    """Whether a module is a file of the user that is as it was when it was imported."""
    if type(module) is not ModuleType:
        return False
    path = getattr(module, "__file__", None)  # a built-in module has none
    if not path or not path.endswith(".py"):
        return False
    is_installed = any(Path(path).is_relative_to(folder) for folder in list_installed())
    if is_installed or module.__name__ == "__main__":
        return False
    return is_unchanged(module, path)


def is_unchanged(module: ModuleType, path: str) -> bool:
    """Whether a file is older than the bytecode that was written when it was imported.

    Without bytecode nothing is known, and the file is taken as it is.
    """
    cached = getattr(module, "__cached__", None)
    try:
        header = Path(cached).read_bytes()[:16] if cached else b""
        then = (
            int.from_bytes(header[8:12], "little"),
            int.from_bytes(header[12:16], "little"),
        )
        now = Path(path).stat()
    except OSError:
        return True
    is_by_time = header[4:8] == bytes(4)
    return not is_by_time or then == (
        int(now.st_mtime) & 0xFFFFFFFF,
        now.st_size & 0xFFFFFFFF,
    )


@lru_cache(1)
def list_installed() -> tuple[str, ...]:
    """Return the folders of Python's library and of installed packages."""
    folders = [*sysconfig.get_paths().values(), *site.getsitepackages()]
    own = Path(__file__).parents[1]
    return (*folders, site.getusersitepackages(), str(own))


def shorten_path(path: str) -> str:
    """Return a path as messages show it: from the working directory, if below it."""
    try:
        return str(Path(path).resolve().relative_to(Path.cwd()))
    except ValueError:
        return Path(path).name
