"""The statements of earlier code that a block rests on, by the names in them.

A statement binds names, changes what names refer to, and reads names. From these
:func:`choose_statements` finds which earlier statements must run again, so that a block
runs as it did; it runs no code. Of ``def test(): width = 8; model = Net(width); with
record(): model(x)`` the statements of the function and the module before the block are
earlier code, too (:func:`read_enclosing`): arguments of the function, and names of
loops around the block, are used as they are.
"""

import ast
import linecache
import re
import symtable
import sys
from collections.abc import Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from functools import lru_cache
from itertools import chain, pairwise
from typing import Final, NamedTuple

from meta_magic.trace.options import Rerun
from meta_magic.trials.blocks import FUNCTIONS, SCOPES, Entered, find_path, list_others

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

MAX_SECONDS: Final = 5.0
"""Processor time of a cell above which only what it defines is run again."""

MAX_SECONDS_OF_EFFECTS: Final = 0.5
"""The same for its loops, and for its calls without a result, such as ``train()``."""

EFFECTS: Final = (ast.For, ast.While, ast.With, ast.Expr)
IMPORTS: Final = (ast.Import, ast.ImportFrom)
DEFINITE: Final = (*SCOPES, *IMPORTS, ast.Assign, ast.AnnAssign)


class Statement(NamedTuple):
    """A statement at the top level of a cell.

    Attributes:
        first: Its first line there, with decorators.
        binds: The names that it binds.
        changes: The names whose objects it may change.
        reads: The names that it reads at once.
        defers: The names that its functions read when they are called.
        defines: The class that it defines, or "".
        is_definite: Whether it always binds its names.
        is_repeatable: Whether it may run again.
        is_long: Whether it may not run again because its cell took long.
    """

    cell: int
    first: int
    last: int
    binds: frozenset[str]
    changes: frozenset[str]
    reads: frozenset[str]
    defers: frozenset[str]
    defines: str
    is_definite: bool
    is_repeatable: bool
    is_long: bool


class Chosen(NamedTuple):
    """What a block rests on.

    Attributes:
        statements: The statements that run again, with the block's own, in order.
        kept: Names of variables that are used as they are when the block starts.
        skipped: Statements that took long and are left out.
        unbound: Names that no statement binds.
    """

    statements: list[Statement]
    kept: list[str]
    skipped: list[Statement]
    unbound: frozenset[str]


def choose_statements(
    statements: Sequence[Statement],
    block: int,
    fixed: Iterable[str] = (),
    trained: AbstractSet[str] = frozenset(),
) -> Chosen:
    """Return what a block rests on.

    Some code may not run again, as a download. Its variables are used as they are when
    the block starts. Then a statement that binds or changes one of them, or that read
    an older value of it, may not run either; what it makes is used as it is, too.
    A training loop that may not run again is left out, and the model is made anew,
    untrained: its sizes are the same. The caller checks that the block does the same.
    All statements of the cell ``block`` are chosen; ``fixed`` names variables that are
    used as they are, ``trained`` models and optimizers.
    """
    kept, deferred, classes = {*fixed}, frozenset[str](), set[str]()
    while True:
        chosen = _choose(statements, block, kept, deferred, trained, classes)
        own = chosen.statements
        # ``n = n + 1`` cannot run again if what made ``n`` first is not there.
        made = [one for one in own if one.cell != block and one.is_definite]
        moved = (one.binds & one.reads for one in made)
        used = {*chosen.kept, *chosen.unbound.intersection(chain(*moved))}
        defers = frozenset[str]().union(*(one.defers for one in own))
        defined = {one.defines for one in own}
        if kept >= used and defers == deferred and classes >= defined:
            return chosen
        kept |= used
        classes |= defined
        deferred = defers


def _choose(
    statements: Sequence[Statement],
    block: int,
    kept: AbstractSet[str],
    deferred: AbstractSet[str],
    trained: AbstractSet[str],
    classes: AbstractSet[str],
) -> Chosen:
    """Return what a block rests on if some variables are used as they are.

    What changes one of the ``classes``, as ``Net.forward = f``, changes its instances.
    """
    needed, later = {*deferred}, set[str]()
    chosen: list[Statement] = []
    skipped: list[Statement] = []
    found: set[str] = set()
    for one in reversed(statements):
        touched = one.binds | one.changes
        if one.cell == block:
            is_run = True
        elif needed.isdisjoint(touched) and classes.isdisjoint(one.changes):
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
            is_skipped = not one.is_repeatable
            hidden = one.binds | (one.changes - trained) if is_skipped else touched
            found |= needed & hidden
            needed -= hidden
            skipped += [one] if one.is_long and not needed.isdisjoint(touched) else []
        later |= set() if one.cell == block else touched
    bound = frozenset[str]().union(*(one.binds for one in chosen))
    unbound = needed - (bound & deferred)  # a class that names itself in a method
    return Chosen(chosen[::-1], sorted(found), skipped[::-1], frozenset(unbound))


@lru_cache(MAX_TEXTS)
def read_statements(text: str, seconds: float = 0.0) -> tuple[Statement, ...]:
    """Return the statements of a cell; a cell that is no Python has none."""
    try:
        return tuple(read_statement(one, seconds) for one in ast.parse(text).body)
    except (SyntaxError, ValueError):
        return ()


def read_statement(node: ast.stmt, seconds: float = 0.0) -> Statement:
    """Return a statement of a cell that took some processor time."""
    names = [one for one in ast.walk(node) if isinstance(one, ast.Name)]
    stored = {one.id for one in names if not isinstance(one.ctx, ast.Load)}
    calls = [one for one in ast.walk(node) if isinstance(one, ast.Call)]
    parts = (p for p in ast.walk(node) if isinstance(p, (ast.Attribute, ast.Subscript)))
    changes = {_root(one) for one in parts if not isinstance(one.ctx, ast.Load)}
    if isinstance(node, SCOPES):
        decorators = [d for d in node.decorator_list if isinstance(d, ast.Call)]
        # ``@add_to_class(Net)`` may change ``Net``.
        changes = {_root(argument) for one in decorators for argument in one.args}
        binds, calls = {node.name}, []
    elif isinstance(node, IMPORTS):
        binds = {(a.asname or a.name).partition(".")[0] for a in node.names}
        binds |= _list_starred(node)
    else:
        defined = (one for one in ast.walk(node) if isinstance(one, SCOPES))
        binds = stored | {one.name for one in defined}
        changes |= set(_list_arguments(node))
    reads, defers = _list_reads(node)
    is_cheap = isinstance(node, (*SCOPES, *IMPORTS)) or not calls
    limit = MAX_SECONDS_OF_EFFECTS if isinstance(node, EFFECTS) else MAX_SECONDS
    is_long = seconds > limit and not is_cheap
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
        defines=node.name if isinstance(node, ast.ClassDef) else "",
        is_definite=isinstance(node, DEFINITE),
        is_repeatable=not (is_refused or is_long),
        is_long=is_long,
    )


def _list_starred(node: ast.Import | ast.ImportFrom) -> set[str]:
    """Return the names that ``from module import *`` binds."""
    is_star = isinstance(node, ast.ImportFrom) and node.names[0].name == "*"
    module = sys.modules.get(node.module or "") if is_star else None  # type: ignore[union-attr]  # an ImportFrom
    variables = {} if module is None else vars(module)
    public = (name for name in variables if not name.startswith("_"))
    return {*variables.get("__all__", public)}


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


LOOPS = (ast.For, ast.AsyncFor, ast.While)


class Enclosing(NamedTuple):
    """A file of which only the lines are left that a block rests on.

    Attributes:
        text: The same lines: a statement around the block is ``if 1:``, or a ``with``
            of the other context managers, and what does not run again is empty.
        own_line: The first line of the block.
    """

    typed: str
    text: str
    own_line: int
    chosen: Chosen


def read_enclosing(
    rerun: Rerun,
    trained: AbstractSet[str],
    earlier: Sequence[Statement] = (),
    n_cells: int = 0,
) -> Enclosing | None:
    """Return the file of a ``with record()`` or a test; None if it is not known.

    ``earlier`` are the statements of the cells that ran before, if the file is a cell.
    """
    typed = "".join(linecache.getlines(rerun.file)).rstrip("\n")
    try:
        tree = ast.parse(typed)
    except (SyntaxError, ValueError):
        return None
    path = find_path(tree, rerun)
    inner = [*path[1:], path[-1].body[0]] if path else []
    bodies = [getattr(node, "body", None) or [node] for node in path]
    firsts = [read_statement(body[0]).first for body in bodies]
    is_opened = all(
        first > node.lineno and below in body  # the body begins on a line of its own
        for node, body, first, below in zip(path, bodies, firsts, inner, strict=True)
    )
    if not path or not is_opened:
        return None
    before = [one._replace(cell=n_cells) for one in _list_before(tree, path)]
    own = [read_statement(one)._replace(cell=n_cells + 1) for one in path[-1].body]
    fixed = _list_fixed(path, before)
    statements = [*earlier, *before, *own]
    chosen = choose_statements(statements, n_cells + 1, fixed, trained)
    lines = typed.split("\n")
    kept = (one for one in chosen.statements if one.cell >= n_cells)
    kept_lines = {n for one in kept for n in range(one.first, one.last + 1)}
    text = [line if n in kept_lines else "" for n, line in enumerate(lines, 1)]
    for node in path:
        others = list_others(node, rerun) if node is path[-1] else []
        header = f"with {', '.join(map(ast.unparse, others))}:" if others else "if 1:"
        text[node.lineno - 1] = " " * node.col_offset + header
    return Enclosing(typed, "\n".join(text), own[0].first, chosen)


def _list_before(tree: ast.Module, path: Sequence[Entered]) -> Iterator[Statement]:
    """Yield statements before a block: of its module, then of its function."""
    functions = [n for n, node in enumerate(path[:-1]) if isinstance(node, FUNCTIONS)]
    bodies = [(tree.body, path[0])]
    around = path[functions[-1] if functions else 0 :]
    bodies += [
        (one.body, inner)
        for one, inner in pairwise(around)
        if functions or not isinstance(one, ast.ClassDef)
    ]
    for body, inner in bodies:
        for node in body[: body.index(inner)]:
            one = read_statement(node)
            try:
                compile(ast.Module([node], []), "<statement>", "exec")
            except SyntaxError:  # it returns: it cannot stand outside of a function
                one = one._replace(is_repeatable=False)
            yield one


def _list_fixed(path: Sequence[Entered], before: Sequence[Statement]) -> set[str]:
    """Return names whose values the statements before a block do not make.

    These are arguments, names that a loop or a ``with`` around the block binds, and
    names that a loop's body changes.
    """
    fixed: set[str] = set()
    for node in path:
        if isinstance(node, FUNCTIONS):
            arguments = ast.walk(node.args)
            fixed |= {one.arg for one in arguments if isinstance(one, ast.arg)}
        if node is path[-1] or isinstance(node, FUNCTIONS):
            continue
        headers = [part for part in ast.iter_child_nodes(node) if part not in node.body]
        names = (one for part in headers for one in ast.walk(part))
        stored = (one for one in names if isinstance(one, ast.Name))
        fixed |= {one.id for one in stored if not isinstance(one.ctx, ast.Load)}
        if isinstance(node, LOOPS):
            inside = read_statement(node)
            outside = [one for one in before if one.last < node.lineno]
            bound = {name for one in outside for name in one.binds}
            fixed |= (inside.binds | inside.changes) & bound

    return fixed
