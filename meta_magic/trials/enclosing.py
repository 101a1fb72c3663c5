"""The function and the module around a recorded block, as code that it rests on.

Of ``def test(): width = 8; model = Net(width); with record(): model(x)`` the statements
before the block run again with it, as earlier cells of a notebook do. Arguments of the
function, and names of loops around the block, are used as they are. Read
:func:`read_enclosing` first.
"""

import ast
import linecache
from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from itertools import pairwise
from typing import NamedTuple

from meta_magic.trace.rerun import Rerun
from meta_magic.trials.blocks import FUNCTIONS, Entered, find_path, list_others
from meta_magic.trials.statements import (
    Chosen,
    Statement,
    choose_statements,
    read_statement,
)

LOOPS = (ast.For, ast.AsyncFor, ast.While)


class Enclosing(NamedTuple):
    """A file whose lines are empty, but for those that a block rests on.

    Attributes:
        typed: The file.
        text: The same lines: a statement around the block is ``if True:``, and what
            does not run again is empty.
        own_line: The first line of the block.
        chosen: What the block rests on.
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

    Args:
        rerun: How the block was recorded.
        trained: Names of models and optimizers.
        earlier: The statements of the cells that ran before, if the file is a cell.
        n_cells: How many these cells are.
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
    for node in path[:-1]:
        if isinstance(node, FUNCTIONS):
            fixed |= {
                one.arg for one in ast.walk(node.args) if isinstance(one, ast.arg)
            }
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
    if isinstance(path[-1], FUNCTIONS):
        arguments = ast.walk(path[-1].args)
        fixed |= {one.arg for one in arguments if isinstance(one, ast.arg)}
    return fixed
