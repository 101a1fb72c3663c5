"""Edits of what stands for an operand, where the failed call accepts it otherwise."""

import ast
import re
from collections.abc import Iterator
from itertools import islice
from typing import Final

from meta_magic.explain.edits.accepted import Accepted, Accepting
from meta_magic.explain.edits.edit import Edit, join_edits
from meta_magic.explain.edits.operand_changes import list_forms
from meta_magic.explain.edits.situations import Situation

__all__ = ["edit_operands"]

COSTS: Final = (
    (r"\.(float|long)\(\)$", 0.5),
    (r"\.(bool|half|bfloat16|double)\(\)$", 0.9),
    (r"contiguous", 0.5),
    (r"\.flatten\(1\)", 0.5),
    (r"\.squeeze\(", 0.6),
    (r"\.unsqueeze\(\d\)$", 0.7),
    (r"interpolate", 0.7),
    (r"one_hot", 1.0),
    (r"\.T$|transpose\(-2|transpose\([1-9]|permute\(0", 0.5),
    (r"transpose", 0.7),
    (r"permute", 0.9),
    (r"flatten\(0, 1\)|view\(", 1.0),
    (r"None|\[.*\.shape|expand_as", 1.1),
    (r"mean|view_as|flatten\(\)", 1.6),
    (r"", 1.5),
)
"""How unlikely a change is to be meant, by what it says."""

SURE: Final = 0.4
"""What an error that speaks of dtypes counts for casts that are accepted."""

UNTESTED: Final = 0.4
"""What it counts that nothing is known of what would be accepted."""

BROADCAST: Final = 1.2
"""What it counts that a result becomes larger than all operands."""

TWICE: Final = 0.6
"""What it counts that two changes are made."""

BACK: Final = 0.3
"""What it counts that a result is turned back, unless it is as what was turned."""

ALIKE: Final = 0.2
"""What it counts that others of a formula are changed as well."""

MAX_PLACES: Final = 2

UNDONE: Final = re.compile(
    r"{}(\.T|\.transpose\(.*\)|\.unsqueeze\((\d)\)|\.permute\((.*)\))"
)
"""Changes that may be undone in the result."""


def edit_operands(situation: Situation) -> Iterator[Edit]:
    """Yield edits that write accepted changes."""
    for accepting in situation.accepted.changes:
        extra = 0.0 if accepting.is_as_large else BROADCAST
        if len(accepting.changes) == 1:
            yield from change_operand(situation, accepting, extra)
        else:
            yield from change_both(situation, accepting, extra)
    if situation.accepted == Accepted():
        yield from change_untested(situation)


def change_untested(situation: Situation) -> Iterator[Edit]:
    """Yield edits that change operands where what is accepted is not known."""
    for number, operand in enumerate(situation.call.operands):
        for node in islice(situation.find_operand(number), 1):
            for change in list_forms([operand], 0):
                cost = weigh(change.text) + UNTESTED + situation.weigh(node)
                yield from situation.program.extend(node, change.text, cost)


def change_operand(
    situation: Situation, accepting: Accepting, extra: float
) -> Iterator[Edit]:
    """Yield edits that change an operand: where it is given, or where it was made."""
    ((number, text),) = accepting.changes
    cost = weigh(text) + extra - (SURE if situation.is_of_dtypes else 0)
    is_back = bool(undo(text)) and (accepting.keeps_shape or "squeeze" in text)
    for node in islice(situation.find_operand(number), MAX_PLACES):
        at = cost + situation.weigh(node)
        yield from situation.program.extend(
            node, text, at + (BACK / 2 if is_back else 0)
        )
        yield from turn_back(situation, node, text, at + (0 if is_back else BACK))
        yield from change_alike(situation, node, text, at + ALIKE)


def change_both(
    situation: Situation, accepting: Accepting, extra: float
) -> Iterator[Edit]:
    """Yield edits that change two operands, each where it is given."""
    (first, text), (second, other) = accepting.changes
    cost = max(weigh(text), weigh(other)) + TWICE + extra
    for node in islice(situation.find_operand(first), 1):
        for beside in islice(situation.find_operand(second), 1):
            edits = (
                *situation.program.extend(node, text, cost),
                *situation.program.extend(beside, other, cost),
            )
            yield join_edits(edits, cost)


def turn_back(
    situation: Situation, node: ast.expr, text: str, cost: float
) -> Iterator[Edit]:
    """Yield an edit that gives a call an operand turned, and turns its result back."""
    program = situation.program
    call, back = next(program.walk_up(node), None), undo(text)
    if isinstance(call, ast.Call) and back and node in call.args:
        edits = (*program.extend(node, text, 0), *program.extend(call, back, 0))
        yield join_edits(edits, cost)
    if isinstance(call, ast.Attribute) and back:
        method = next(program.walk_up(call), None)
        if isinstance(method, ast.Call):
            edits = (*program.extend(node, text, 0), *program.extend(method, back, 0))
            yield join_edits(edits, cost + BACK)


def undo(text: str) -> str:
    """Return what undoes a change in a result; "" if that is not known."""
    found = UNDONE.fullmatch(text)
    if found is None:
        return ""
    if found[2]:
        return f"{{}}.squeeze({found[2]})"
    if found[3]:
        order = [int(dim) for dim in found[3].split(",")]
        back = (order.index(dim) for dim in range(len(order)))
        return f"{{}}.permute({', '.join(map(str, back))})"
    return text


def change_alike(
    situation: Situation, node: ast.expr, text: str, cost: float
) -> Iterator[Edit]:
    """Yield an edit that changes all but the other operands of a formula.

    As of ``(x - mean) / std``: where ``mean`` is of a wrong form, ``std`` is as well.
    """
    program = situation.program
    statement = program.find_statement(node)
    if statement is None:
        return
    others = {one.name for one in situation.call.operands}
    inside = {id(below) for below in ast.walk(node)}
    found = [
        below
        for below in ast.walk(statement)
        if isinstance(below, ast.Name)
        and isinstance(next(program.walk_up(below), None), ast.BinOp)
        and below.id not in others
        and id(below) not in inside
    ]
    if found and isinstance(next(program.walk_up(node), None), ast.BinOp):
        edits = [
            edit for one in (node, *found) for edit in program.extend(one, text, 0)
        ]
        yield join_edits(edits, cost)


def weigh(text: str) -> float:
    """Return how unlikely a change is to be meant."""
    return next(cost for pattern, cost in COSTS if re.search(pattern, text))
