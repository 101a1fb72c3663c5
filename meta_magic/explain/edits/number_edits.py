"""Edits of numbers: the failed call accepts another one.

``nn.Linear(400, 10)`` gets 576 features. :func:`edit_numbers` looks for expressions
whose value was 400 and writes 576 there, or a name whose value was 576, or a factor of
a product. :func:`edit_roots` follows the chain of the refused size to numbers that are
written far away, and solves for their value.
"""

import ast
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import combinations, permutations
from math import prod
from operator import ne
from typing import Final, TypeAlias

from meta_magic.explain.edits.argument_edits import DIMS
from meta_magic.explain.edits.program_text import (
    Edit,
    SourceText,
    is_read,
    join_edits,
    mark_lossy,
    name_of,
    read_number,
)
from meta_magic.explain.edits.situations import Situation
from meta_magic.explain.probing import list_near_ratios
from meta_magic.explain.refused_sizes import solve

Pair: TypeAlias = tuple[int, int]
"""A wrong number, and the accepted one."""

LATER: Final = 0.12
"""The cost of a number that is not the first accepted one."""

DATA: Final = 0.9
"""The cost of a number in data: the user wants a model that fits the data."""

EXPRESSION: Final = 0.15
"""The cost of replacing an expression by a number."""

SMALL: Final = 0.5
"""The cost of a small number, which may mean many things."""

MAX_SMALL: Final = 3

BOTH: Final = 0.2
"""The cost of a number that must change both sides of an image."""

ONE: Final = 0.8
"""The cost of the size 1, which is often accepted because it is broadcast."""

GUESSED: Final = 0.5
"""The cost of a pair that was not found by trying the call."""

MAX_NUMBERS: Final = 6
"""How many numbers of a message are paired."""

NUMBER: Final = re.compile(r"(?<![\w.])\d+(?![\w.]|\.\d)")
SHAPE: Final = re.compile(r"[(\[](\d+(?:, \d+)+)[)\]]")
INVALID: Final = re.compile(r"shape '\[([\d, ]+)\]' is invalid for input of size (\d+)")
"""The message of a view of another number of elements; a shape without -1."""

DIVIDED: Final = re.compile(r"divi(sible|de)|multiple of")
"""Part of messages about a width that heads must divide."""

MAX_NAMES: Final = 2
MIN_FACTORS: Final = 2

SUM: Final = re.compile(r"\{\}( \+ \{\})+")
"""The formula of a concatenation."""

PRODUCT: Final = re.compile(r"\{\}( \* \{\})+")


TOGETHER: Final = 0.05
"""How much less it costs to change several factors, than to replace the product."""


def edit_numbers(situation: Situation) -> Iterator[Edit]:
    """Yield edits of numbers, the likeliest first."""
    program, read = situation.program, situation.read_values
    known = [(n, values) for n in program.find(ast.expr) if (values := read(n))]
    given = (one.geometry.shape for one in situation.call.operands)
    is_broadcast = not any(1 in shape for shape in given)
    chains = [one.lineage for one in situation.refused]
    sums = {one.size for one in chains if SUM.fullmatch(one.steps[0].formula)}
    for (wrong, right), cost in _weigh_pairs(situation):
        nodes = [node for node, values in known if wrong in values]
        names = _find_names(program, known, right)
        is_sum = right in sums and right > wrong
        terms = _find_names(program, known, right - wrong) if is_sum else {}
        for node in nodes:
            is_passed = node.lineno in situation.list_passed(wrong)
            weight = cost + (0 if is_passed else situation.weigh(node) / 2)
            weight += DATA if program.is_data(node) else 0
            edits = [*_edit_number(situation, node, (wrong, right), names, weight)]
            edits += _edit_products(situation, node, (wrong, right), weight)
            for term in terms.get(program.find_scope(node), ()):
                if is_read(node) and term != ast.unparse(node):
                    edits += program.extend(node, f"{{}} + {term}", weight + EXPRESSION)
            yield from mark_lossy(edits) if right == 1 and is_broadcast else edits
        together = _edit_together(situation, nodes, (wrong, right), cost)
        yield from mark_lossy(together) if right == 1 and is_broadcast else together


def _weigh_pairs(situation: Situation) -> Iterator[tuple[Pair, float]]:
    accepted = [pair for pair in situation.accepted.numbers if pair[1] >= 0]
    for at, pair in enumerate(accepted):
        is_small = 0 <= pair[0] <= MAX_SMALL
        cost = (SMALL if is_small else 0) + (ONE if pair[1] <= 1 else 0)
        yield pair, cost + LATER * min(at, 6)
    traced = (
        (one.lineage.size, to) for one in situation.refused for to in one.accepted
    )
    others = (p for p in dict.fromkeys(traced) if p not in accepted and p[1] >= 0)
    yield from ((pair, 0) for pair in others)
    aligned = [*_align_shapes(situation.error)]
    yield from ((pair, GUESSED) for pair in aligned if pair not in accepted)
    named = [int(number) for number in NUMBER.findall(situation.error)]
    named = [] if aligned else named
    numbers = [*dict.fromkeys(named)][:MAX_NUMBERS]
    yield from ((pair, 0) for pair in _list_divided(situation.error))
    is_ratio = bool(DIVIDED.search(situation.error)) and not accepted
    for one, other in permutations(numbers, 2) if is_ratio else ():
        yield from (((one, n), 0) for n in list_near_ratios(one, other))
    for pair in permutations(numbers, 2):
        if pair not in accepted:
            is_small = pair[0] <= MAX_SMALL and bool(accepted)
            yield pair, GUESSED * (2 if accepted else 1) + (SMALL if is_small else 0)
    for wrong in () if accepted or situation.call.function is None else numbers:
        yield (wrong, 1), GUESSED + ONE


def _list_divided(error: str) -> Iterator[Pair]:
    """Yield heads and widths that divide each other, for ``width // heads`` in a view.

    36 elements as 5 heads of 7: 5 may become 4 or 6, and 36 may become 35 or 40.
    """
    found = INVALID.search(error)
    if found is None:
        return
    shape, total = [*map(int, NUMBER.findall(found[1]))], int(found[2])
    for heads, each in {*combinations(shape, 2)} if all(shape) else ():
        width, rest = divmod(total * heads * each, prod(shape))
        if not rest and width % heads and width // heads == each:
            yield from ((heads, n) for n in list_near_ratios(heads, width))
            yield from ((width, n) for n in list_near_ratios(width, heads))


def _align_shapes(error: str) -> Iterator[Pair]:
    """Yield the sizes in which two shapes of a message differ, both ways.

    torch says "Expected hidden[0] size (2, 50, 64), got [2, 16, 64]": 50 and 16 do.
    """
    shapes = [[*map(int, NUMBER.findall(found))] for found in SHAPE.findall(error)]
    for first, second in combinations(shapes, 2):
        pairs = zip(first, second, strict=False)
        differing = [pair for pair in pairs if pair[0] != pair[1]]
        if len(first) == len(second) and len(differing) == 1:
            yield from (differing[0], differing[0][::-1])


def _find_names(
    program: SourceText, expressions: Iterable[tuple[ast.expr, set[int]]], right: int
) -> dict[int, list[str]]:
    """Return by scope the names whose value was a number, the surest first."""
    known: dict[int, dict[str, int]] = {}
    for node, values in expressions:
        if right in values and isinstance(node, (ast.Name, ast.Attribute)):
            scope = program.find_scope(node)
            known.setdefault(scope, {})[ast.unparse(node)] = len(values)
    return {
        scope: sorted(names, key=lambda name: (names[name], "." in name))[:MAX_NAMES]
        for scope, names in known.items()
    }


def _edit_number(
    situation: Situation,
    node: ast.expr,
    pair: Pair,
    names: dict[int, list[str]],
    cost: float,
) -> Iterator[Edit]:
    """Yield edits of an expression whose value was a wrong number."""
    program = situation.program
    wrong, right = pair
    if not is_read(node) or _is_dim(program, node):
        return
    extra = 0.0
    if read_number(node) is None:
        extra = EXPRESSION
        if (
            isinstance(node, ast.BinOp)
            and isinstance(node.op, ast.Sub)  # ``len(vocab) - 1``
            and read_number(node.right) == right - wrong
        ):
            yield from program.replace(node, program.read(node.left), cost)
        for template in _scale(situation, wrong, right):
            extra_cost = EXPRESSION if "//" in template else 0  # a name says it better
            yield from program.extend(node, template, cost + extra_cost)
    elif isinstance(node, ast.BinOp):
        extra = EXPRESSION
        factors = [one for one in ast.walk(node) if isinstance(one, ast.Constant)]
        for factor in reversed(factors):
            value = read_number(factor)
            if value and value * right % wrong == 0 < right:
                text = str(value * right // wrong)
                yield from program.replace(factor, text, cost)
    yield from program.replace(node, str(right), cost + extra)
    for name in names.get(program.find_scope(node), []):
        if name != ast.unparse(node):
            yield from program.replace(node, name, cost + extra / 2)


def _is_dim(program: SourceText, node: ast.expr) -> bool:
    """Whether a number names a dimension, or has a sign before it."""
    above = next(program.walk_up(node), None)
    if isinstance(above, ast.keyword):
        return above.arg in {"dim", "start_dim", "dim0", "dim1"}
    if isinstance(above, ast.Call):
        return name_of(above) in DIMS
    return isinstance(above, ast.UnaryOp)


def _scale(situation: Situation, wrong: int, right: int) -> Iterator[str]:
    """Yield how one number is made of another, ``{}`` for it.

    The quotient has the factors of the size that is needed, as a flatten made it: of
    490 = 10 * 7 * 7, 10 is a name, and ``width * 7 * 7`` is written.
    """
    if wrong and right % wrong == 0 and right > 0:
        known = (one for one in _read_products(situation, right) if wrong in one)
        factors = next(known, [])
        if len(factors) > MIN_FACTORS:
            factors.remove(wrong)
            yield " * ".join(["{}", *map(str, factors)])
        else:
            yield f"{right // wrong} * {{}}"
    elif right > 0 and wrong % right == 0:
        yield f"{{}} // {wrong // right}"
    elif abs(right - wrong) == 1:
        yield "{} + 1" if right > wrong else "{} - 1"


def _edit_products(
    situation: Situation, node: ast.expr, pair: Pair, cost: float
) -> Iterator[Edit]:
    """Yield the edit of several factors at once: ``16 * 5 * 5`` to ``16 * 4 * 4``.

    The new factors are those of the size that is needed, as a flatten made it.
    """
    factors = [*_list_factors(node)]
    old = [read_number(factor) or 0 for factor in factors]
    if len(old) < MIN_FACTORS or prod(old) != pair[0]:
        return
    for new in _read_products(situation, pair[1]):
        if len(new) == len(old) and sum(map(ne, old, new)) > 1:
            edits = [
                edit
                for factor, value in zip(factors, new, strict=True)
                if factor.value != value
                for edit in situation.program.replace(factor, str(value), 0)
            ]
            yield replace(join_edits(edits, cost - TOGETHER), is_solved=True)


def _list_factors(node: ast.AST) -> Iterator[ast.Constant]:
    """Yield the factors of a product of numbers, from left to right."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
        yield from _list_factors(node.left)
        yield from _list_factors(node.right)
    elif isinstance(node, ast.Constant) and type(node.value) is int:
        yield node


def _read_products(situation: Situation, size: int) -> Iterator[list[int]]:
    """Yield the factors that a refused size of the call came from."""
    for refused in situation.refused:
        steps = refused.lineage.steps
        first = steps[0]
        if refused.lineage.size == size and PRODUCT.fullmatch(first.formula):
            yield [int(steps[part].value) for part in first.parts]


def _is_outermost(program: SourceText, node: ast.expr) -> bool:
    """Whether a node is a number or product of numbers, in no larger product."""
    above = next(program.walk_up(node), None)
    is_in = above is not None and read_number(above) is not None
    is_number = read_number(node) is not None
    return is_number and not is_in and not _is_dim(program, node)


def _edit_together(
    situation: Situation, nodes: Sequence[ast.expr], pair: Pair, cost: float
) -> Iterator[Edit]:
    """Yield edits that change several equal numbers at once.

    These are in one statement, in all, or in the layers that hand a refused size on: a
    convolution and the norm after it must agree.
    """
    program, (wrong, right) = situation.program, pair
    passed = situation.list_passed(wrong)
    written = [node for node in nodes if _is_outermost(program, node)]
    by_line: dict[int, list[ast.expr]] = {}
    for node in written:
        by_line.setdefault(node.lineno, []).append(node)
    groups = [group for group in by_line.values() if len(group) > 1]
    groups += [written] if len(by_line) > 1 else []
    named = (ast.Constant, ast.Name, ast.Attribute)
    on_way: list[ast.expr] = [
        node
        for node in nodes
        if node.lineno in passed and isinstance(node, named)
        if is_read(node) and not _is_dim(program, node)
    ]
    groups += [on_way] if len(on_way) > 1 and on_way not in groups else []
    for group in groups:
        edits = [edit for one in group for edit in program.replace(one, str(right), 0)]
        weight = max(situation.weigh(one) for one in group) / 2 + len(by_line) / 10
        weight += DATA if any(program.is_data(one) for one in group) else 0
        yield join_edits(edits, cost + weight + 0.1)


FAR: Final = 0.2
WORKED: Final = 0.1
"""The cost of a size that comes from a number by calls, or by arithmetic alone."""

MOST_DATA: Final = 8
"""How many times larger data may become."""

WINDOW: Final = 0.4
"""The cost of another window of a pool or convolution: layers must fit its output."""

MAX_FOR_EACH: Final = 6


def edit_roots(situation: Situation) -> Iterator[Edit]:
    """Yield edits of written numbers with which a refused size is accepted."""
    program = situation.program
    nodes = {(n.lineno, n.col_offset): n for n in program.find(ast.Constant)}
    for refused in situation.refused:
        solved = [*solve(refused)][:MAX_FOR_EACH]
        steps = refused.lineage.steps
        is_made = any(step.line and not step.is_written for step in steps)
        distance = (FAR if is_made else WORKED) if len(steps) > 1 else 0.0
        for at, (written, value, wanted) in enumerate(solved):
            spots = [nodes.get((one.line or 0, one.column or 0)) for one in written]
            found = [node for node in spots if node is not None]
            if len(found) < len(spots):
                continue
            node = found[0]
            if program.is_data(node) and value > MOST_DATA * written[0].value:
                continue
            cost = LATER * at + distance + (0 if refused.is_alone else BOTH)
            cost += DATA if program.is_data(node) else 0
            cost += ONE if wanted == 1 else 0
            cost += WINDOW if program.is_window(node) else 0
            is_lossy = wanted == 1  # it is only broadcast
            edit = join_edits(
                (e for one in found for e in program.replace(one, str(value), 0)), cost
            )
            if edit.stretches:
                is_solved = refused.is_alone and not is_lossy
                yield replace(edit, is_solved=is_solved, is_lossy=is_lossy)
