"""Edits of the numbers that a refused size comes from, solved for what is accepted."""

import ast
from collections.abc import Iterator
from dataclasses import replace
from math import inf
from typing import Final

from meta_magic.explain.edits.edit import Edit
from meta_magic.explain.edits.program_text import Program
from meta_magic.explain.edits.situations import Situation
from meta_magic.explain.lineage.lineage_records import Lineage
from meta_magic.explain.refused_sizes import solve

__all__ = ["edit_roots"]

LATER: Final = 0.12
"""What it counts that a number is not the first that would do."""

FAR: Final = 0.2
WORKED: Final = 0.1
"""What it counts that a size comes from a number by calls, or by arithmetic alone, and
is not that itself."""

DATA: Final = 0.9
"""What it counts that a number is of data: what people ask for is a model of these."""

MOST_DATA: Final = 8
"""How many times as large data may become."""

MAX_FOR_EACH: Final = 6

NEUTRAL: Final = {ast.Add: 0, ast.Sub: 0, ast.Mult: 1, ast.FloorDiv: 1}
"""What changes nothing on the right of an operator."""


def edit_roots(situation: Situation) -> Iterator[Edit]:
    """Yield edits of written numbers by which a size becomes one that is accepted."""
    program = situation.program
    nodes = {(n.lineno, n.col_offset): n for n in program.find(ast.Constant)}
    for refused in situation.refused:
        solved = [*solve(refused)][:MAX_FOR_EACH]
        distance = weigh(refused.lineage)
        for at, (step, value) in enumerate(solved):
            node = nodes.get((step.line or 0, step.column or 0))
            most = inf if node is None or not program.is_data(node) else step.value
            if node is not None and value <= MOST_DATA * most:
                cost = LATER * at + distance
                cost += DATA if program.is_data(node) else 0
                yield from drop(program, node, value, cost)
                for edit in (
                    program.replace(node, str(value), cost) if value > 0 else ()
                ):
                    yield replace(edit, is_solved=True)


def weigh(lineage: Lineage) -> float:
    """Return what it counts how a size comes from the numbers that are written."""
    if len(lineage.steps) == 1:
        return 0.0
    is_made = any(step.line and not step.is_written for step in lineage.steps)
    return FAR if is_made else WORKED


def drop(program: Program, node: ast.expr, value: int, cost: float) -> Iterator[Edit]:
    """Yield the edit that takes a number away which as another would change nothing.

    As of ``width + 3`` or ``2 * width``, for which ``width`` is left.
    """
    above = next(program.walk_up(node), None)
    if not isinstance(above, ast.BinOp) or NEUTRAL.get(type(above.op)) != value:
        return
    if node is above.left and not isinstance(above.op, (ast.Add, ast.Mult)):
        return
    other = above.right if node is above.left else above.left
    text = program.read(other)
    yield from program.replace(
        above, f"({text})" if isinstance(other, ast.BinOp) else text, cost
    )
