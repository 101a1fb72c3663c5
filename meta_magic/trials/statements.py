"""The statements of earlier code that a block rests on, by the names in them.

A statement binds names, changes what names refer to, and reads names. From these
:func:`choose_statements` finds which earlier statements must run again, so that a block
runs as it did; it runs no code. Read it first.
"""

import ast
import re
import symtable
import sys
from collections.abc import Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from functools import lru_cache
from typing import Final, NamedTuple

MAX_TEXTS: Final = 200
"""How many cells are kept as statements."""

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


def choose_statements(
    statements: Sequence[Statement], block: int, fixed: Iterable[str] = ()
) -> tuple[list[Statement], list[str], frozenset[str]]:
    """Return the statements that a block rests on, with its own, in order.

    A variable whose code may not run again is used as it is when the block starts. So
    no statement may run that binds or changes it, or that read an older value of it:
    the variables that those statements make are used as they are, too.

    Args:
        statements: Those of all cells, in the order in which they ran.
        block: Index of the block's cell; all its statements are chosen.
        fixed: Names of variables that are used as they are.

    Returns:
        The statements; the names of variables whose code is not run again; and the
        names that no statement binds.
    """
    kept, deferred = {*fixed}, frozenset[str]()
    while True:
        chosen, found, needed = _choose(statements, block, kept, deferred)
        defers = frozenset[str]().union(*(one.defers for one in chosen))
        if found <= kept and defers == deferred:
            return chosen, sorted(found), frozenset(needed)
        kept |= found
        deferred = defers


def _choose(
    statements: Sequence[Statement],
    block: int,
    kept: AbstractSet[str],
    deferred: AbstractSet[str],
) -> tuple[list[Statement], set[str], set[str]]:
    """Return chosen statements, variables to use as they are, and unbound names."""
    needed, later = {*deferred}, set[str]()
    chosen: list[Statement] = []
    found: set[str] = set()
    for one in reversed(statements):
        touched = one.binds | one.changes
        if one.cell == block:
            is_run = True
        elif needed.isdisjoint(touched):
            later |= touched
            continue
        else:
            stale = one.reads & kept & later
            is_run = one.is_repeatable and not touched & kept and not stale
        if is_run:
            chosen.append(one)
            needed -= one.binds if one.is_definite else set()
            needed |= one.reads | one.defers
        else:
            found |= needed & touched
            needed -= touched
        later |= set() if one.cell == block else touched
    return chosen[::-1], found, needed


@lru_cache(MAX_TEXTS)
def read_statements(text: str, *, is_long: bool) -> tuple[Statement, ...]:
    """Return the statements of a cell; a cell that is no Python has none.

    Args:
        text: The cell.
        is_long: Whether it took long.
    """
    try:
        return tuple(
            read_statement(one, is_long=is_long) for one in ast.parse(text).body
        )
    except (SyntaxError, ValueError):
        return ()


def read_statement(node: ast.stmt, *, is_long: bool) -> Statement:
    """Return a statement; ``is_long`` is whether its cell took long."""
    names = [one for one in ast.walk(node) if isinstance(one, ast.Name)]
    stored = {one.id for one in names if not isinstance(one.ctx, ast.Load)}
    calls = [one for one in ast.walk(node) if isinstance(one, ast.Call)]
    changes = {_root(one) for one in ast.walk(node) if _is_change(one)}
    if isinstance(node, SCOPES):
        binds, changes, calls = {node.name}, set(), []
    elif isinstance(node, IMPORTS):
        binds = {(a.asname or a.name).partition(".")[0] for a in node.names}
        binds |= _list_starred(node)
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


def _list_starred(node: ast.Import | ast.ImportFrom) -> set[str]:
    """Return the names that ``from module import *`` binds."""
    is_star = isinstance(node, ast.ImportFrom) and node.names[0].name == "*"
    module = sys.modules.get(node.module or "") if is_star else None  # type: ignore[union-attr]  # an ImportFrom
    variables = {} if module is None else vars(module)
    public = (name for name in variables if not name.startswith("_"))
    return {*variables.get("__all__", public)}


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
        table = symtable.symtable(ast.unparse(node), "<statement>", "exec")
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
