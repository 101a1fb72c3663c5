"""Edits for what was meant of tensors: a part, a size that is kept, another image."""

import ast
import re
from collections.abc import Iterator
from itertools import islice, pairwise
from math import log
from typing import Final

from meta_magic.explain.edits.accepted import Accepted, Accepting, list_forms
from meta_magic.explain.edits.number_edits import is_range
from meta_magic.explain.edits.program_text import Edit, is_read, join_edits, read_number
from meta_magic.explain.edits.situations import Situation

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


SLICE_COST, TUPLE_COST, SHIFT_COST, PAD_COST, RESIZE_COST = 0.9, 0.4, 0.6, 0.5, 1.3

SLICES: Final = ("{}[:, 1:]", "{}[:, :-1]", "{}[1:]", "{}[:-1]")

SIDES: Final = frozenset({28, 32, 48, 64, 96, 112, 128, 224, 227, 256, 299, 384, 512})
"""What sides images commonly have."""

MIN_SIDE: Final = 8

MAX_SIDES: Final = 5

MANY: Final = re.compile(r"values to unpack|not enough values")


def edit_intents(situation: Situation) -> Iterator[Edit]:
    """Yield edits that say what was meant of tensors."""
    for family in (
        keep_dimensions,
        slice_names,
        drop_ends,
        unpack,
        take_first,
        shift_indexes,
        name_sizes,
        resize_images,
        pad_otherwise,
    ):
        yield from family(situation)


def keep_dimensions(situation: Situation) -> Iterator[Edit]:
    """Yield edits that keep a dimension: ``x[:, :1]`` for ``x[:, 0]``; or all of it."""
    program = situation.program
    for node in filter(is_read, situation.find_near(ast.Subscript)):
        cost = SLICE_COST + situation.weigh(node)
        inner = node.slice
        for part in inner.elts if isinstance(inner, ast.Tuple) else [inner]:
            at = read_number(part)
            if at is not None:
                text = f"{at or ''}:{'' if at == -1 else at + 1}"
                yield from program.replace(part, text, cost)
        yield from program.replace(node, program.read(node.value), cost + 0.6)


def slice_names(situation: Situation) -> Iterator[Edit]:
    """Yield edits that leave out the first or the last along a dimension."""
    program = situation.program
    for node in situation.find_near(ast.Name):
        above = next(program.walk_up(node), None)
        is_given = isinstance(above, (ast.Call, ast.Assign, ast.Attribute))
        for at, text in enumerate(SLICES if is_given else ()):
            if node.id in situation.tensors:
                cost = SLICE_COST + 0.5 + 0.1 * at + situation.weigh(node)
                yield from program.extend(node, text, cost)


def drop_ends(situation: Situation) -> Iterator[Edit]:
    """Yield edits without ``+ 1`` or ``- 1``."""
    program = situation.program
    for node in program.find(ast.BinOp):
        is_sum = isinstance(node.op, (ast.Add, ast.Sub))
        if is_sum and read_number(node.right) == 1:
            cost = SLICE_COST + situation.weigh(node)
            yield from program.replace(node, program.read(node.left), cost)


def unpack(situation: Situation) -> Iterator[Edit]:
    """Yield edits by which what is returned is taken apart otherwise."""
    program = situation.program
    for node in situation.find_near(ast.Tuple) if MANY.search(situation.error) else ():
        if not is_read(node) and len(node.elts) > 1:
            first, *others = map(program.read, node.elts)
            for text in (f"{first}, ({', '.join(others)})", f"{first}, *_"):
                yield from program.replace(node, text, TUPLE_COST)


def take_first(situation: Situation) -> Iterator[Edit]:
    """Yield edits that take the first of several values that are returned."""
    program = situation.program
    for called in program.calls if "tuple" in situation.error else ():
        if called.owner is None or ast.unparse(called.owner) == "self":
            cost = TUPLE_COST + situation.weigh(called.node)
            yield from program.extend(called.node, "{}[0]", cost)


def shift_indexes(situation: Situation) -> Iterator[Edit]:
    """Yield edits by which numbers of classes or rows are not out of range."""
    program = situation.program
    if not is_range(situation.error):
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


def name_sizes(situation: Situation) -> Iterator[Edit]:
    """Yield edits that use the size of a batch at hand for one that is written."""
    program = situation.program
    for called in program.calls:
        if called.name in {"view", "reshape", "expand"} and called.owner is not None:
            owner, args = program.read(called.owner), called.node.args
            if len(args) > 1 and re.fullmatch(r"[\w.]+", owner):
                cost = SLICE_COST + situation.weigh(called.node)
                yield from program.replace(args[0], f"{owner}.shape[0]", cost)


def resize_images(situation: Situation) -> Iterator[Edit]:
    """Yield edits of the two sizes of square images, to those that are common."""
    program = situation.program
    given = [node.args for node in program.find(ast.Call)]
    given += [node.elts for node in program.find(ast.Tuple)]
    for numbers in given:
        for first, second in pairwise(numbers):
            side = read_number(first) or 0
            is_square = side >= MIN_SIDE and side == read_number(second)
            for at, other in enumerate(list_sides(side) if is_square else ()):
                edits = (
                    *program.replace(first, str(other), 0),
                    *program.replace(second, str(other), 0),
                )
                yield join_edits(edits, RESIZE_COST + at / 10)


def list_sides(side: int) -> list[int]:
    """Return the sides that images commonly have, those next to one first."""
    others = sorted(SIDES - {side}, key=lambda other: abs(log(other / side)))
    return others[:MAX_SIDES]


def pad_otherwise(situation: Situation) -> Iterator[Edit]:
    """Yield edits that pad by what is not limited by the size that is there."""
    for node in situation.find_near(ast.keyword):
        value = node.value
        is_mode = node.arg in {"mode", "padding_mode"}
        if is_mode and isinstance(value, ast.Constant) and value.value == "reflect":
            yield from situation.program.replace(value, '"replicate"', PAD_COST)
