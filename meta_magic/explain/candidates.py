"""Edits of a cell that may mend a failed call, by what the call accepts.

Numbers: where the call accepts another one, what stood for the one that it got, in the
run that failed, is replaced: by a name that stood for the other, by a multiple, or by
the number itself. Operands: where a cast or another form is accepted, that is written.
Modules: what they are told otherwise. Which of them help is left to a trial.
"""

import ast
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Final, NamedTuple

from meta_magic.explain.edits import Edit, add_argument, edit_node
from meta_magic.explain.operand_changes import (
    list_accepted_casts,
    list_accepted_forms,
)
from meta_magic.explain.probing import Probe
from meta_magic.explain.traced_block import Seen

__all__ = ["Accepted", "list_accepted", "list_edits"]

MAX_NUMBERS: Final = 40
MAX_EDITS: Final = 32

ATOMS: Final = (ast.Name, ast.Attribute, ast.Call, ast.Subscript, ast.Constant)
"""Expressions that a method can be called of without brackets."""

SCOPES: Final = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)


OTHERWISE: Final[Mapping[str, Mapping[str, str]]] = {
    kind: {name: value}
    for kinds, name, value in (
        ("LSTM GRU RNN MultiheadAttention", "batch_first", "True"),
        ("TransformerEncoderLayer Transformer", "batch_first", "True"),
        ("Conv1d Conv2d Conv3d", "padding", '"same"'),
        ("MaxPool1d MaxPool2d MaxPool3d AvgPool2d", "ceil_mode", "True"),
    )
    for kind in kinds.split()
}
"""What modules of torch are told otherwise where sizes do not fit, by class."""


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
            for list_changes in (list_accepted_casts, list_accepted_forms)
            for change in list_changes(probe, number)
        )
        for number, operand in enumerate(probe.call.operands)
    }
    return Accepted(tuple(islice(dict.fromkeys(numbers), MAX_NUMBERS)), changes)


def list_edits(
    text: str, seen: Seen, accepted: Accepted, lines: Sequence[int]
) -> list[Edit]:
    """Return edits of a program that may mend a failed call, the likeliest first.

    Args:
        text: The program.
        seen: What integers its expressions stood for, when it failed.
        accepted: What the failed call accepts.
        lines: That of the call, and then those that made its operands; edits of them
            come first.
    """
    nodes = [*ast.walk(ast.parse(text))]
    found = [
        *edit_operands(nodes, accepted, lines[0]),
        *edit_numbers(nodes, seen, accepted),
        *edit_modules(nodes, text),
    ]
    found.sort(key=lambda edit: edit.line not in lines)
    return list(islice(dict.fromkeys(found), MAX_EDITS))


def edit_numbers(
    nodes: Sequence[ast.AST], seen: Seen, accepted: Accepted
) -> Iterator[Edit]:
    """Yield edits of what stood for a number, where another is accepted."""
    stood_for = [
        (node, {read_number(node), *seen.get(number, ())} - {None})
        for number, node in enumerate(nodes)
        if isinstance(node, ast.expr)
    ]
    scopes = find_scopes(nodes)
    for wrong, right in accepted.numbers:
        names = {
            (scopes.get(id(node)), node.id): None
            for node, values in stood_for
            if right in values and isinstance(node, ast.Name)
        }
        for node, values in stood_for:
            if wrong not in values:
                continue
            here = [name for scope, name in names if scope == scopes.get(id(node))]
            for written in (*here, *write_number(node, wrong, right)):
                yield from edit_node(node, written)


def write_number(node: ast.expr, wrong: int, right: int) -> Iterator[str]:
    """Yield how the right number can be written in the place of a wrong one."""
    if read_number(node) is None and isinstance(node, ATOMS):
        if wrong and right % wrong == 0:
            yield f"{right // wrong} * {ast.unparse(node)}"
        elif right and wrong % right == 0:
            yield f"{ast.unparse(node)} // {wrong // right}"
    yield str(right)


def find_scopes(nodes: Sequence[ast.AST]) -> dict[int, int]:
    """Return for nodes in functions the line of the innermost one, by ``id``."""
    scopes: dict[int, int] = {}
    for node in nodes:  # outer ones come first
        if isinstance(node, SCOPES):
            scopes |= {id(below): node.lineno for below in ast.walk(node)}
    return scopes


def read_number(node: ast.AST) -> int | None:
    """Return the integer that a number or a product of numbers is, or None."""
    if isinstance(node, ast.Constant):
        return node.value if type(node.value) is int else None
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
        left, right = read_number(node.left), read_number(node.right)
        return None if left is None or right is None else left * right
    return None


def edit_operands(
    nodes: Sequence[ast.AST], accepted: Accepted, line: int
) -> Iterator[Edit]:
    """Yield edits that cast an operand of the failing line, or give it another form."""
    for node in nodes:
        if isinstance(node, ast.expr) and node.lineno == line:
            name = ast.unparse(node)
            written = name if isinstance(node, ATOMS) else f"({name})"
            for text in accepted.changes.get(name, ()):
                yield from edit_node(node, text.format(written))


def edit_modules(nodes: Sequence[ast.AST], text: str) -> Iterator[Edit]:
    """Yield edits that tell modules what they are not told by default."""
    for node in nodes:
        if isinstance(node, ast.Call):
            kind = ast.unparse(node.func).rpartition(".")[2]
            given = {keyword.arg for keyword in node.keywords}
            for name, value in OTHERWISE.get(kind, {}).items():
                if name not in given:
                    yield from add_argument(node, text, f"{name}={value}")
