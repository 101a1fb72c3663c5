"""Edits of tensors in the user's code: what the call accepts, and common mistakes.

:func:`edit_operands` writes changes that the failed call accepts, such as ``w.T``,
where the operand is given or where it was made. :func:`edit_intents` proposes what
people often mean: ``x[:, :1]`` for ``x[:, 0]``, or ``self.rnn(x)[0]`` for
``self.rnn(x)``.
"""

import ast
import re
from collections.abc import Iterator
from itertools import islice
from typing import Final

import torch

from meta_magic.explain.edits.accepted import Accepting
from meta_magic.explain.edits.program_text import Edit, is_read, join_edits, mark_lossy
from meta_magic.explain.edits.situations import Situation

COSTS: Final = (
    (r"\.(float|long)\(\)$", 0.5),
    (r"\.(bool|half|bfloat16|double)\(\)$", 0.9),
    (r"contiguous", 0.5),
    (r"\.flatten\(1\)", 0.5),
    (r"\.squeeze\(|permute\(2, 0, 1\)", 0.6),
    (r"\.expand\(", 0.5),
    (r"\.unsqueeze\(\d\)$", 0.7),
    (r"\.reshape\(1", 0.8),
    (r"interpolate|repeat", 0.7),
    (r"one_hot", 1.0),
    (r"\.T$|transpose\(-2|transpose\([1-9]|permute\(0", 0.5),
    (r"transpose", 0.7),
    (r"permute", 0.9),
    (r"flatten\(0, 1\)|view\(", 1.0),
    (r"None|\[.*\.shape|expand_as", 1.1),
    (r"mean|view_as|flatten\(\)", 1.6),
    (r"", 1.5),
)
"""How unlikely a change is, by its text; the first pattern that matches counts."""

SURE: Final = 0.4
"""How much less an accepted cast costs if the error is about dtypes."""

BROADCAST: Final = 1.2
"""The cost of a result that is larger than all operands."""

ELSEWHERE: Final = 0.4
"""How much less it costs to turn a tensor whose last dimension alone is as wanted."""

TURN: Final = re.compile(r"transpose|permute")

TWICE: Final = 0.6
"""The cost of two changes."""

BACK: Final = 0.3
"""The cost of turning a result back, unless it has the shape of what was turned."""

ALIKE: Final = 0.2
"""The cost of changing other tensors of a formula as well."""

ALIGNED: Final = 0.9
"""How much less new last dimensions cost if the others are the first of an operand, as
of weights of rows; and a cut of a table of positions."""

MAX_WRITTEN: Final = 2

LEAVING_OUT: Final = re.compile(r"\{\}\[(?!.*None)|mean|interpolate")
"""Part of changes that keep only some of the elements."""

TABLE: Final = re.compile(r"{}\[:, :[\w.]+\.shape\[1\]\]$")
"""A cut of dimension 1 alone."""

UNDONE: Final = re.compile(
    r"{}(\.T|\.transpose\([^)]*\)|\.unsqueeze\((\d)\)|\.permute\(([^)]*)\))"
)
"""Changes that can be undone in the result."""


def edit_operands(situation: Situation) -> Iterator[Edit]:
    """Yield edits that write accepted changes."""
    for accepting in situation.accepted.changes:
        extra = 0.0 if accepting.is_as_large else BROADCAST
        is_one = len(accepting.changes) == 1
        change = _change_operand if is_one else _change_both
        edits = change(situation, accepting, extra)
        is_lossy = any(
            LEAVING_OUT.search(text)
            and not _is_mask(situation, number, text)
            and not _is_table(situation, number, text)
            for number, text in accepting.changes
        )
        yield from mark_lossy(edits) if is_lossy else edits


def _change_operand(
    situation: Situation, accepting: Accepting, extra: float
) -> Iterator[Edit]:
    """Yield edits that change an operand: where it is given, or where it was made."""
    ((number, text),) = accepting.changes
    cost = _weigh(text) + extra - (SURE if situation.is_of_dtypes else 0)
    cost -= ELSEWHERE if _is_mask(situation, number, text) else 0
    shape = situation.call.operands[number].geometry.shape
    is_turn = TURN.search(text) is not None and len(shape) > PAIRS
    if is_turn and any(
        wrong in shape and wrong != right == shape[-1] > shape.count(right) == 1
        for wrong, right in situation.accepted.numbers
    ):
        cost -= ELSEWHERE
    if _is_table(situation, number, text) or _is_aligned(situation, number, text):
        cost -= ALIGNED
    is_back = bool(_undo(text)) and (accepting.keeps_shape or "squeeze" in text)
    for node in islice(situation.find_operand(number), MAX_WRITTEN):
        at = cost + situation.weigh(node)
        yield from situation.program.extend(
            node, text, at + (BACK / 2 if is_back else 0)
        )
        yield from _turn_back(situation, node, text, at + (0 if is_back else BACK))
        yield from _change_alike(situation, node, text, at + ALIKE)
        yield from _change_source(situation, node, text, at + ALIKE)


def _change_source(
    situation: Situation, node: ast.expr, text: str, cost: float
) -> Iterator[Edit]:
    """Yield the edit that changes ``a = table[t]``, if ``a.sqrt()`` is an operand."""
    names = {one.id for one in ast.walk(node) if isinstance(one, ast.Name)}
    scope = situation.program.find_scope(node)
    for made in situation.find_near(ast.Assign) if names != {ast.unparse(node)} else ():
        is_near = situation.program.find_scope(made) == scope
        if is_near and ast.unparse(made.targets[0]) in names:
            yield from situation.program.extend(made.value, text, cost)


def _is_aligned(situation: Situation, number: int, text: str) -> bool:
    """Whether a change adds last dimensions to the first sizes of another operand."""
    shapes = [operand.geometry.shape for operand in situation.call.operands]
    own = shapes[number]
    is_last = text == f"{{}}.unsqueeze({len(own)})" or "[..., None" in text
    longer = [one for one in shapes if any(size > 1 for size in one[len(own) :])]
    return is_last and len(own) > 0 and any(one[: len(own)] == own for one in longer)


def _is_table(situation: Situation, number: int, text: str) -> bool:
    """Whether a change cuts positions of a parameter or a buffer: no data is lost."""
    operand = situation.call.operands[number]
    is_held = operand.name.startswith("self.")
    return (
        is_held
        and operand.geometry.shape[:1] == (1,)
        and TABLE.search(text) is not None
    )


def _is_mask(situation: Situation, number: int, text: str) -> bool:
    """Whether a change cuts a mask to the sizes of another operand."""
    geometry = situation.call.operands[number].geometry
    return geometry.dtype == torch.bool and ".shape[" in text and "{}[" in text


def _change_both(
    situation: Situation, accepting: Accepting, extra: float
) -> Iterator[Edit]:
    (first, text), (second, other) = accepting.changes
    cost = max(_weigh(text), _weigh(other)) + TWICE + extra
    for node in islice(situation.find_operand(first), 1):
        for beside in islice(situation.find_operand(second), 1):
            edits = (
                *situation.program.extend(node, text, cost),
                *situation.program.extend(beside, other, cost),
            )
            yield join_edits(edits, cost)


def _turn_back(
    situation: Situation, node: ast.expr, text: str, cost: float
) -> Iterator[Edit]:
    """Yield an edit that turns an operand, and turns the call's result back."""
    program = situation.program
    call, back = next(program.walk_up(node), None), _undo(text)
    if isinstance(call, ast.Call) and back and node in call.args:
        edits = (*program.extend(node, text, 0), *program.extend(call, back, 0))
        yield join_edits(edits, cost)
    if isinstance(call, ast.Attribute) and back:
        method = next(program.walk_up(call), None)
        if isinstance(method, ast.Call):
            edits = (*program.extend(node, text, 0), *program.extend(method, back, 0))
            yield join_edits(edits, cost + BACK)


def _undo(text: str) -> str:
    """Return the code that undoes a change in the result; "" if none is known."""
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


def _change_alike(
    situation: Situation, node: ast.expr, text: str, cost: float
) -> Iterator[Edit]:
    """Yield an edit that changes all tensors of a formula but the other operands.

    If ``mean`` in ``(x - mean) / std`` lacks a dimension, ``std`` does too; and of
    ``u, i = x[:, 0], x[:, 1]`` both have the dtype of ``x``.
    """
    program = situation.program
    beside = next(program.walk_up(node), None)
    if isinstance(beside, ast.Tuple) and is_read(beside) and situation.is_of_dtypes:
        yield join_edits(
            [edit for one in beside.elts for edit in program.extend(one, text, 0)], cost
        )
        return
    statement = program.find_statement(node)
    if statement is None:
        return
    others = {one.name for one in situation.call.operands}
    inside = {id(below) for below in ast.walk(node)}
    found = [
        below
        for below in ast.walk(statement)
        if isinstance(below, (ast.Name, ast.Attribute))
        and isinstance(next(program.walk_up(below), None), ast.BinOp)
        and ast.unparse(below) not in others
        and id(below) not in inside
    ]
    if found and isinstance(next(program.walk_up(node), None), ast.BinOp):
        edits = [
            edit for one in (node, *found) for edit in program.extend(one, text, 0)
        ]
        yield join_edits(edits, cost)


def _weigh(text: str) -> float:
    return next(cost for pattern, cost in COSTS if re.search(pattern, text))


TUPLE_COST, SHIFT_COST = 0.4, 0.6

PAIRS: Final = 2
"""Dimensions of a tensor of pairs."""

MANY: Final = re.compile(r"values to unpack|not enough values")
OUT_OF_RANGE: Final = re.compile(r"out of (range|bounds)")


def edit_intents(situation: Situation) -> Iterator[Edit]:
    """Yield edits of common mistakes with tensors."""
    for family in (_unpack, _take_first, _shift_indexes):
        yield from family(situation)


def _unpack(situation: Situation) -> Iterator[Edit]:
    """Yield edits that unpack returned values in another way."""
    program = situation.program
    for node in situation.find_near(ast.Tuple) if MANY.search(situation.error) else ():
        if not is_read(node) and len(node.elts) > 1:
            first, *others = map(program.read, node.elts)
            for text in (f"{first}, ({', '.join(others)})", f"{first}, *_"):
                yield from program.replace(node, text, TUPLE_COST)
            made = next(program.walk_up(node), None)
            if isinstance(made, ast.Assign):
                yield from _turn_columns(situation, made.value, len(node.elts))


def _turn_columns(situation: Situation, node: ast.expr, n: int) -> Iterator[Edit]:
    """Yield edits that unpack the columns of a tensor, not its rows."""
    for operand in situation.call.operands:
        shape = operand.geometry.shape
        is_it = situation.program.read(node) == operand.name
        for dim in (dim for dim, size in enumerate(shape) if size == n and is_it):
            text = "{}.T" if len(shape) == PAIRS else f"{{}}.unbind({dim})"
            yield from situation.program.extend(node, text, TUPLE_COST - 0.1)


def _take_first(situation: Situation) -> Iterator[Edit]:
    """Yield edits that take the first of several returned values."""
    program = situation.program
    for called in program.calls if "tuple" in situation.error else ():
        if called.owner is None or ast.unparse(called.owner) == "self":
            cost = TUPLE_COST + situation.weigh(called.node)
            yield from program.extend(called.node, "{}[0]", cost)
    parts = {one.name for one in situation.call.operands}
    is_type = situation.error.startswith("TypeError")
    for node in situation.find_near(ast.Name) if is_type else ():
        if f"{node.id}[0]" in parts:
            yield from program.extend(node, "{}[0]", TUPLE_COST + situation.weigh(node))


def _shift_indexes(situation: Situation) -> Iterator[Edit]:
    """Yield edits that bring class numbers and indices into range."""
    program = situation.program
    if not OUT_OF_RANGE.search(situation.error):
        return
    for number, operand in enumerate(situation.call.operands):
        if not operand.geometry.dtype.is_floating_point:
            for node in situation.find_operand(number):
                cost = SHIFT_COST + situation.weigh(node)
                yield from program.extend(node, "{} - 1", cost)
    for called in program.calls:
        if called.name in {"cross_entropy", "nll_loss", "CrossEntropyLoss", "NLLLoss"}:
            cost = SHIFT_COST + 0.2 + situation.weigh(called.node)
            yield from program.add_argument(called.node, "ignore_index=-1", cost)
