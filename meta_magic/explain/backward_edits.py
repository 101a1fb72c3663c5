"""Edits of a cell that may mend its backward pass."""

import ast
from collections.abc import Iterable, Iterator, Sequence
from copy import copy

from meta_magic.explain.backward_errors import Finding
from meta_magic.explain.edits import Edit, add_argument, edit_node

__all__ = ["list_backward_edits"]


def list_backward_edits(text: str, finding: Finding) -> list[Edit]:
    """Return edits of a program that may mend what is wrong with its graph."""
    nodes = [*ast.walk(ast.parse(text))]
    at_line = [n for n in nodes if getattr(n, "lineno", None) == finding.line]
    edits = {
        "cut": lambda: edit_cuts(nodes, at_line),
        "freed": lambda: retain_graphs(nodes, text),
        "written": lambda: avoid_writes(nodes, at_line, text),
    }
    return list(dict.fromkeys(edits[finding.kind]()))


def edit_cuts(nodes: Sequence[ast.AST], at_line: Sequence[ast.AST]) -> Iterator[Edit]:
    """Yield edits without what detaches: at the line that cut, then anywhere."""
    for node in (*at_line, *nodes):
        if isinstance(node, ast.Attribute) and node.attr == "data":
            yield from edit_node(node, ast.unparse(node.value))
    for node, owner, name in walk_methods((*at_line, *nodes)):
        if name in {"detach", "item"}:
            yield from edit_node(node, ast.unparse(owner))
        if name == "no_grad":
            yield from edit_node(node, f"{ast.unparse(owner)}.enable_grad()")


def retain_graphs(nodes: Sequence[ast.AST], text: str) -> Iterator[Edit]:
    """Yield edits by which a backward pass keeps what was saved."""
    for node, _, name in walk_methods(nodes):
        if name == "backward":
            yield from add_argument(node, text, "retain_graph=True")


def avoid_writes(
    nodes: Sequence[ast.AST], at_line: Sequence[ast.AST], text: str
) -> Iterator[Edit]:
    """Yield edits that make something new in the place of a write."""
    alone = [node.value for node in at_line if isinstance(node, ast.Expr)]
    for called, owner, name in walk_methods(at_line):
        if name.endswith("_") and not name.endswith("__"):
            written = ast.get_source_segment(text, called) or ""
            made = written.replace(f".{name}(", f".{name[:-1]}(")
            target = f"{ast.unparse(owner)} = " if called in alone else ""
            yield from edit_node(called, target + made)
    for node in at_line:
        if isinstance(node, ast.AugAssign):
            yield from edit_node(node, write_out(node))
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Subscript):
            name = ast.unparse(node.targets[0].value)
            written = ast.get_source_segment(text, node) or ""
            yield from edit_node(node, f"{name} = {name}.clone(); {written}")
    for node in nodes:
        if isinstance(node, ast.keyword) and node.arg == "inplace":
            yield from edit_node(node.value, "False")


def write_out(node: ast.AugAssign) -> str:
    """Return ``x = x + (y)`` for ``x += y``."""
    target = copy(node.target)
    target.ctx = ast.Load()
    made = ast.BinOp(target, node.op, node.value)
    return f"{ast.unparse(node.target)} = {ast.unparse(made)}"


def walk_methods(
    nodes: Iterable[ast.AST],
) -> Iterator[tuple[ast.Call, ast.expr, str]]:
    """Yield calls of methods: the call, of what, and which."""
    for node in nodes:
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            yield node, node.func.value, node.func.attr
