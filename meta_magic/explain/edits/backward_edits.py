"""Edits of a program that may mend its backward pass, or what autograd refuses."""

import ast
import re
from collections.abc import Iterator
from copy import copy
from typing import Final

from meta_magic.explain.backward_errors import Finding
from meta_magic.explain.edits.edit import Edit, join_edits, sort_edits
from meta_magic.explain.edits.program_text import Called, Program
from meta_magic.explain.edits.situations import Situation

__all__ = ["edit_refusals", "list_backward_edits"]

AT_LINE, ANYWHERE = 0.3, 0.6

REFUSED_COST: Final = 0.4

REFUSED: Final = re.compile(r"grad|leaf")
"""What errors say that are of autograd."""


def list_backward_edits(program: Program, finding: Finding) -> list[Edit]:
    """Return edits of a program that may mend what is wrong with its graph."""
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
    """Yield edits by which what was saved is kept, or no earlier graph is gone through.

    The latter where a name is carried from one round of a loop to the next.
    """
    for called in program.calls:
        if called.name == "backward":
            cost = weigh(called.node, line)
            yield from program.add_argument(called.node, "retain_graph=True", cost)
    for node in program.find(ast.Assign):
        bound = {
            one.id for one in ast.walk(node.targets[0]) if isinstance(one, ast.Name)
        }
        carried = [
            one
            for one in ast.walk(node.value)
            if isinstance(one, ast.Name) and one.id in bound
        ]
        edits = [e for one in carried for e in program.extend(one, "{}.detach()", 0)]
        yield join_edits(edits, ANYWHERE)


def walk_names(node: ast.AST) -> Iterator[ast.Name]:
    """Yield the names in an expression."""
    yield from (one for one in ast.walk(node) if isinstance(one, ast.Name))


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


def edit_refusals(situation: Situation) -> Iterator[Edit]:
    """Yield edits of what autograd refuses: to write what it follows, or to read it."""
    if REFUSED.search(situation.error):
        for called in situation.program.calls:
            yield from leave_graph(situation, called)
        assigned = situation.find_near(ast.Assign)
        into = [n for n in assigned if isinstance(n.targets[0], ast.Subscript)]
        for node in (*into, *situation.find_near(ast.AugAssign)):
            text = f"with torch.no_grad(): {situation.program.read(node)}"
            yield from situation.program.replace(node, text, REFUSED_COST)


def leave_graph(situation: Situation, called: Called) -> Iterator[Edit]:
    """Yield edits of a call that autograd refuses."""
    program, owner = situation.program, called.owner
    cost = REFUSED_COST + situation.weigh(called.node)
    if owner is None:
        return
    if called.name == "numpy":
        yield from program.extend(owner, "{}.detach()", cost)
    elif called.name.endswith("_"):
        yield from program.extend(owner, "{}.data", cost)
    elif called.name == "backward":
        yield from program.extend(owner, "{}.mean()", cost)
        yield from program.extend(owner, "{}.sum()", cost + 0.1)
    elif called.name == "Parameter":
        yield from program.add_argument(called.node, "requires_grad=False", cost + 0.3)
