"""Give names other values, wherever a block binds them."""

import ast
from collections.abc import Iterator, Mapping
from typing import Any, Final

__all__ = ["set_sizes"]

SCOPES: Final = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
"""In them names are others."""

ASSIGNMENTS: Final = (ast.Assign, ast.AnnAssign, ast.AugAssign)


def set_sizes(block: ast.Module, sizes: Mapping[str, int]) -> ast.Module:
    """Return a block in which names have other values.

    Behind each of its statements that binds one of them, it is bound to that value; in
    the body of a loop that does, at its beginning.

    Args:
        block: Statements, with their lines; it is changed.
        sizes: The value of each name.
    """
    resize(block, sizes)
    return ast.fix_missing_locations(block)


def resize(node: Any, sizes: Mapping[str, int]) -> None:
    """Bind names anew in the statements of a node, and in those below it."""
    for name, value in ast.iter_fields(node):
        nodes = value if isinstance(value, list) else []
        for item in nodes:
            if isinstance(item, ast.AST) and not isinstance(item, SCOPES):
                resize(item, sizes)
        if nodes and isinstance(nodes[0], ast.stmt):
            setattr(node, name, list(bind_anew(nodes, sizes)))
    if isinstance(node, ast.For):
        node.body[:0] = bind(node.target, node, sizes)


def bind_anew(
    statements: list[ast.stmt], sizes: Mapping[str, int]
) -> Iterator[ast.stmt]:
    """Yield statements, and behind those that bind a name one that does so anew."""
    for statement in statements:
        yield statement
        if isinstance(statement, ASSIGNMENTS):
            yield from bind(statement, statement, sizes)


def bind(
    target: ast.AST, where: ast.stmt, sizes: Mapping[str, int]
) -> Iterator[ast.stmt]:
    """Yield an assignment for each of the names that a target binds."""
    names = (node for node in ast.walk(target) if isinstance(node, ast.Name))
    for name in names:
        if isinstance(name.ctx, ast.Store) and name.id in sizes:
            value = ast.Constant(sizes[name.id])
            yield ast.copy_location(ast.Assign([name], value), where)
