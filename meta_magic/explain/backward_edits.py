"""Edits of a program that may mend its backward pass."""

import ast
from collections.abc import Iterator
from copy import copy

from meta_magic.explain.backward_errors import Finding
from meta_magic.explain.candidates import sort_edits
from meta_magic.explain.edits import Edit
from meta_magic.explain.program_text import Program

__all__ = ["list_backward_edits"]

AT_LINE, ANYWHERE = 0.3, 0.6


def list_backward_edits(text: str, finding: Finding) -> list[Edit]:
    """Return edits of a program that may mend what is wrong with its graph."""
    program = Program(text)
    edits = {"cut": edit_cuts, "freed": retain_graphs, "written": avoid_writes}
    return sort_edits(edits[finding.kind](program, finding.line))


def edit_cuts(program: Program, line: int | None) -> Iterator[Edit]:
    """Yield edits without what detaches: at the line that cut, then anywhere."""
    for node in program.nodes:
        if isinstance(node, ast.Attribute) and node.attr == "data":
            cost = weigh(node, line)
            yield from program.replace(node, program.read(node.value), cost)
    for called in program.calls:
        cost = weigh(called.node, line)
        if called.name in {"detach", "item"} and called.owner is not None:
            yield from program.replace(called.node, program.read(called.owner), cost)
        if called.name == "no_grad":
            yield from program.rename(called, "enable_grad", cost)


def retain_graphs(program: Program, line: int | None) -> Iterator[Edit]:
    """Yield edits by which a backward pass keeps what was saved."""
    for called in program.calls:
        if called.name == "backward":
            cost = weigh(called.node, line)
            yield from program.add_argument(called.node, "retain_graph=True", cost)


def avoid_writes(program: Program, line: int | None) -> Iterator[Edit]:
    """Yield edits that make something new in the place of a write."""
    for called in program.calls:
        name, owner = called.name, called.owner
        is_write = name.endswith("_") and not name.endswith("__")
        if is_write and owner is not None and called.node.lineno == line:
            made = program.read(called.node).replace(f".{name}(", f".{name[:-1]}(")
            is_alone = isinstance(next(program.walk_up(called.node), None), ast.Expr)
            target = f"{program.read(owner)} = " if is_alone else ""
            yield from program.replace(called.node, target + made, AT_LINE)
    for node in program.nodes:
        if getattr(node, "lineno", None) == line:
            yield from avoid_write(program, node)
        if isinstance(node, ast.keyword) and node.arg == "inplace":
            yield from program.replace(node.value, "False", ANYWHERE)


def avoid_write(program: Program, node: ast.AST) -> Iterator[Edit]:
    """Yield edits of a statement that writes."""
    if isinstance(node, ast.AugAssign):
        yield from program.replace(node, write_out(node), AT_LINE)
    if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Subscript):
        name = program.read(node.targets[0].value)
        text = f"{name} = {name}.clone(); {program.read(node)}"
        yield from program.replace(node, text, AT_LINE)


def write_out(node: ast.AugAssign) -> str:
    """Return ``x = x + (y)`` for ``x += y``."""
    target = copy(node.target)
    target.ctx = ast.Load()
    made = ast.BinOp(target, node.op, node.value)
    return f"{ast.unparse(node.target)} = {ast.unparse(made)}"


def weigh(node: ast.expr, line: int | None) -> float:
    """Return what it counts where a node is."""
    return AT_LINE if node.lineno == line else ANYWHERE
