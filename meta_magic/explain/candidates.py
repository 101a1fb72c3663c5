"""Edits of a cell that may mend a failed call, by what the call accepts.

Numbers: where the call accepts another one, those of the cell that are written as the
one that it got. Operands: where it accepts a cast or another form, that is written.
Which of them help is left to a trial.
"""

import ast
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Final, NamedTuple

from meta_magic.explain.edits import Edit, edit_node
from meta_magic.explain.operand_changes import list_casts, list_reshapes
from meta_magic.explain.probing import Probe

__all__ = ["Accepted", "list_accepted", "list_edits"]

MAX_NUMBERS: Final = 40
MAX_EDITS: Final = 24

ATOMS: Final = (ast.Name, ast.Attribute, ast.Call, ast.Subscript)
"""Expressions that a method can be called of without brackets."""


class Accepted(NamedTuple):
    """What a failed call accepts.

    Attributes:
        numbers: (what it got, what it accepts in its place), each once.
        changes: By the name of an operand the texts of changes, ``{}`` for it.
    """

    numbers: tuple[tuple[int, int], ...]
    changes: Mapping[str, tuple[str, ...]]


def list_accepted(probe: Probe) -> Accepted:
    """Return what a failed call accepts; nothing where it accepts what it got."""
    if probe.accepts({}):
        return Accepted((), {})
    known = {*probe.values.values()}
    numbers = [
        (value, size)
        for variable, value in probe.values.items()
        for size in probe.list_candidates(variable)
        if probe.accepts({variable: size})
    ]
    # Those of other numbers first, and last what is only broadcast.
    numbers.sort(key=lambda pair: (pair[1] == 1, pair[1] not in known))
    changes = {
        operand.name: tuple(
            change.text
            for change in (*list_casts(operand), *list_reshapes(operand))
            if probe.run(changes={number: change}) is not None
        )
        for number, operand in enumerate(probe.call.operands)
    }
    return Accepted(tuple(islice(dict.fromkeys(numbers), MAX_NUMBERS)), changes)


def list_edits(tree: ast.Module, accepted: Accepted, line: int) -> list[Edit]:
    """Return edits of a program that may mend a call at a line, the likeliest first."""
    nodes = [node for node in ast.walk(tree) if isinstance(node, ast.expr)]
    found = [*edit_operands(nodes, accepted, line), *edit_numbers(nodes, accepted)]
    return list(islice(dict.fromkeys(found), MAX_EDITS))


def edit_numbers(nodes: list[ast.expr], accepted: Accepted) -> Iterator[Edit]:
    """Yield edits of numbers that are written, alone or as a product or a sum."""
    for wrong, right in accepted.numbers:
        for node in nodes:
            if read_number(node) == wrong:
                yield from edit_node(node, str(right))


def read_number(node: ast.expr) -> int | None:
    """Return the integer that an expression of numbers alone stands for, or None."""
    try:
        value = ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return fold_product(node)
    return value if type(value) is int else None


def fold_product(node: ast.expr) -> int | None:
    """Return what a product of written numbers is, or None."""
    if not (isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult)):
        return None
    factors = read_number(node.left), read_number(node.right)
    return None if None in factors else (factors[0] or 0) * (factors[1] or 0)


def edit_operands(
    nodes: list[ast.expr], accepted: Accepted, line: int
) -> Iterator[Edit]:
    """Yield edits that cast an operand of the failing line, or give it another form."""
    at_line = [node for node in nodes if node.lineno == line]
    for node in at_line:
        name = ast.unparse(node)
        written = name if isinstance(node, ATOMS) else f"({name})"
        for text in accepted.changes.get(name, ()):
            yield from edit_node(node, text.format(written))
