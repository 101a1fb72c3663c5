"""Accumulate gradients: a batch goes forward and backward in parts before one step."""

import ast
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple

from torch import nn
from torch.optim import Optimizer

from meta_magic.errors import TrialError
from meta_magic.trials.blocks import SCOPES

ACCUMULATION: Final = "accumulation"


class Parts(NamedTuple):
    """Into how many parts a batch is split.

    Attributes:
        name: What the block calls its size.
        number: How many.
    """

    name: str
    number: int

    def __str__(self) -> str:
        return f"{ACCUMULATION}:{self.name}/{self.number}"


def read_parts(choices: Collection[object], name: str = "") -> Parts | None:
    """Return into what a batch is split by choices, or None if none does.

    Args:
        choices: All that is chosen, such as ``accumulation:batch/4``.
        name: The size that is meant where none is named, as ``accumulation:4`` does.

    Raises:
        TrialError: It cannot be read so, names no size, or there are several.
    """
    texts = [choice for choice in choices if isinstance(choice, str)]
    found = [choice for choice in texts if is_accumulation(choice)]
    if not found:
        return None
    said = found[0].partition(":")[2]
    size, _, number = said.rpartition("/")
    size = size or name
    if len(found) > 1 or not size or not number.isdecimal() or int(number) < 1:
        raise TrialError(
            f"{found[-1]!r} is not understood: say once which size is split into how "
            f"many parts, as '{ACCUMULATION}:batch/4' does"
        )
    return Parts(size, int(number))


def name_parts(choices: Iterable[str], vary: Iterable[str]) -> tuple[str, ...]:
    """Return choices, with the size named that is split: the only one that varies."""
    chosen, names = tuple(choices), tuple(vary)
    parts = read_parts(chosen, names[0] if len(names) == 1 else "")
    return tuple(str(parts) if is_accumulation(one) else one for one in chosen)


def count_parts(choices: Collection[str], name: str) -> int:
    """Return into how many parts a size is split by choices."""
    parts = read_parts(choices)
    return parts.number if parts is not None and parts.name == name else 1


def is_accumulation(choice: str) -> bool:
    """Whether a choice splits a batch."""
    return choice.partition(":")[0] == ACCUMULATION


def accumulate(block: ast.Module, parts: Parts) -> frozenset[str]:
    """Have a block go forward and backward in parts, and return what these bind.

    Of the statements in a row with the one that calls ``backward()``, and before it,
    those that depend on the size are repeated with it. A name depends on those that
    stand in what is assigned to it. All other statements run once.

    Args:
        block: Statements, with their lines; it is changed. The size itself is not: it
            is to be that of a part.
        parts: Into what the batch is split.

    Raises:
        TrialError: The block is of no such form; the message says why.
    """
    row, at = find_backward(block)
    dependent = find_dependent(block, parts.name)
    repeated = [one for one in row[:at] if read_names(ast.walk(one)) & dependent]
    bound = frozenset(bind_names(node for one in repeated for node in ast.walk(one)))
    reason = find_obstacle(row[at], dependent, bound)
    if reason is not None:
        raise TrialError(
            f"gradients cannot be accumulated: {reason} what is computed from "
            f"{parts.name!r} right before the backward() of line {row[at].lineno}"
        )
    loop = ast.For(
        target=ast.Name("__part", ast.Store()),
        iter=ast.parse(f"range({parts.number})", mode="eval").body,
        body=[*repeated, row[at]],
        orelse=[],
    )
    ast.copy_location(loop, row[at])
    row[: at + 1] = [*(one for one in row[:at] if one not in repeated), loop]
    return bound


def find_obstacle(
    backward: ast.stmt, dependent: Collection[str], bound: Collection[str]
) -> str | None:
    """Return what hinders that a statement is repeated, or None.

    Args:
        backward: The statement that calls ``backward()``.
        dependent: Names that depend on the size.
        bound: Those that are bound anew for each part.
    """
    if read_names(walk_own(backward)).isdisjoint(dependent):
        return "it does not take"
    losses = [name for name in read_losses(backward) if name in dependent]
    if losses and losses[0] not in bound:
        return f"{losses[0]!r} is not"
    return None


def find_made_anew(bound: Collection[str], variables: Mapping[str, Any]) -> str | None:
    """Return why parts are none of a batch: they make a module or an optimizer."""
    for name in sorted(bound):
        if isinstance(variables.get(name), (nn.Module, Optimizer)):
            return (
                f"accumulates no gradients: {name!r} depends on the size, and is made "
                "anew for each part"
            )
    return None


def find_backward(block: ast.Module) -> tuple[list[ast.stmt], int]:
    """Return the row of statements that has the call of ``backward()``, and where.

    Raises:
        TrialError: There is none, or there are several.
    """
    found = [
        (row, at)
        for row in walk_rows(block)
        for at, statement in enumerate(row)
        if any(True for _ in find_backward_calls(statement))
    ]
    if len(found) == 1:
        return found[0]
    why = "no statement of the block itself calls backward(), only what it calls may"
    if found:
        lines = ", ".join(str(row[at].lineno) for row, at in found)
        why = f"backward() is called in several places, lines {lines}"
    raise TrialError(f"gradients cannot be accumulated: {why}")


def find_backward_calls(statement: ast.stmt) -> Iterator[tuple[ast.Call, ast.expr]]:
    """Yield the calls of a ``backward()`` in a statement itself, and whose it is."""
    for node in walk_own(statement):
        if isinstance(node, ast.Call):
            of = node.func
            if isinstance(of, ast.Attribute) and of.attr == "backward":
                yield node, of.value


def read_losses(statement: ast.stmt) -> Iterator[str]:
    """Yield the names whose ``backward()`` a statement calls, or that it is given."""
    for call, receiver in find_backward_calls(statement):
        for loss in (receiver, *call.args[:1]):  # or accelerator.backward(loss)
            if isinstance(loss, ast.Name):
                yield loss.id


def find_dependent(block: ast.Module, name: str) -> set[str]:
    """Return the names that depend on one, itself among them."""
    flows = [read_flow(one) for row in walk_rows(block) for one in row]
    dependent, n_before = {name}, 0
    while len(dependent) > n_before:
        n_before = len(dependent)
        for read, bound in flows:
            if not read.isdisjoint(dependent):
                dependent |= bound
    return dependent


def read_flow(statement: ast.stmt) -> tuple[set[str], set[str]]:
    """Return the names that a statement reads, and those that are bound to it.

    Of one that holds others what stands before the colon; of a function and a class
    all that it reads.
    """
    if isinstance(statement, SCOPES):
        return read_names(ast.walk(statement)), {statement.name}
    nodes = list(walk_own(statement))
    return read_names(nodes), bind_names(nodes)


def read_names(nodes: Iterable[ast.AST]) -> set[str]:
    """Return the names that are read."""
    names = (node for node in nodes if isinstance(node, ast.Name))
    return {name.id for name in names if isinstance(name.ctx, ast.Load)}


def bind_names(nodes: Iterable[ast.AST]) -> set[str]:
    """Return the names that are bound, or whose items or attributes are."""
    names = set()
    for node in nodes:
        is_bound, target = isinstance(getattr(node, "ctx", None), ast.Store), node
        while isinstance(target, (ast.Attribute, ast.Subscript)):
            target = target.value
        if is_bound and isinstance(target, ast.Name):
            names.add(target.id)
    return names


def walk_rows(node: ast.AST) -> Iterator[list[ast.stmt]]:
    """Yield the lists of statements in a node, those of functions and classes not."""
    for _, value in ast.iter_fields(node):
        items = value if isinstance(value, list) else []
        if items and isinstance(items[0], ast.stmt):
            yield items
        for item in items:
            if isinstance(item, ast.AST) and not isinstance(item, SCOPES):
                yield from walk_rows(item)


def walk_own(statement: ast.stmt) -> Iterator[ast.AST]:
    """Yield a statement and the expressions in it, without statements that it holds."""
    todo: list[ast.AST] = [statement]
    while todo:
        node = todo.pop()
        yield node
        todo += [
            child
            for child in ast.iter_child_nodes(node)
            if not isinstance(child, (ast.stmt, ast.ExceptHandler, ast.match_case))
        ]
