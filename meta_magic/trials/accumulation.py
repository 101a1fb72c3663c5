"""Gradient accumulation: a batch goes forward and backward in parts before one step.

``trace.fit("H100", choices=["accumulation:batch/4"])`` asks what the user's training
step would need if its batch came in four parts. The user's code has no such loop, so
:func:`accumulate` writes one into the block's syntax tree.
"""

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
        name: The block's name for the size of the batch.
    """

    name: str
    number: int

    def __str__(self) -> str:
        return f"{ACCUMULATION}:{self.name}/{self.number}"


def read_parts(choices: Collection[object], name: str = "") -> Parts | None:
    """Return how choices split a batch (``name`` if they do not say), or None."""
    texts = [choice for choice in choices if isinstance(choice, str)]
    found = [choice for choice in texts if _is_accumulation(choice)]
    if not found:
        return None
    argument = found[0].partition(":")[2]
    size, _, number = argument.rpartition("/")
    size = size or name
    if len(found) > 1 or not size or not number.isdecimal() or int(number) < 1:
        raise TrialError(
            f"cannot read {found[-1]!r}: write one size and its number of parts, such "
            f"as '{ACCUMULATION}:batch/4'"
        )
    return Parts(size, int(number))


def name_parts(choices: Iterable[str], vary: Iterable[str]) -> tuple[str, ...]:
    """Return choices in which ``accumulation:4`` names the only size that varies."""
    chosen, names = tuple(choices), tuple(vary)
    parts = read_parts(chosen, names[0] if len(names) == 1 else "")
    return tuple(str(parts) if _is_accumulation(one) else one for one in chosen)


def count_parts(choices: Collection[str], name: str) -> int:
    """Return into how many parts choices split a size."""
    parts = read_parts(choices)
    return parts.number if parts is not None and parts.name == name else 1


def _is_accumulation(choice: str) -> bool:
    return choice.partition(":")[0] == ACCUMULATION


def accumulate(block: ast.Module, parts: Parts) -> frozenset[str]:
    """Put a loop over the parts of a batch into a block; return the names bound in it.

    The loop has the statement that calls ``backward()``, and of the statements before
    it in the same body those that depend on the size. A name depends on all names in
    the expression that is assigned to it. All other statements run once. The block is
    changed; the caller sets the size to that of one part.
    """
    row, at = _find_backward(block)
    dependent = _find_dependent(block, parts.name)
    repeated = [one for one in row[:at] if _read_names(ast.walk(one)) & dependent]
    bound = frozenset(_bind_names(node for one in repeated for node in ast.walk(one)))
    reason = _find_obstacle(row[at], dependent, bound)
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


def _find_obstacle(
    backward: ast.stmt, dependent: Collection[str], bound: Collection[str]
) -> str | None:
    """Return why a statement cannot be repeated, or None."""
    if _read_names(_walk_own(backward)).isdisjoint(dependent):
        return "it does not take"
    losses = [name for name in _read_losses(backward) if name in dependent]
    if losses and losses[0] not in bound:
        return f"{losses[0]!r} is not"
    return None


def find_remade(bound: Collection[str], variables: Mapping[str, Any]) -> str | None:
    """Return why parts accumulate nothing: each makes a module or an optimizer."""
    for name in sorted(bound):
        if isinstance(variables.get(name), (nn.Module, Optimizer)):
            return (
                f"accumulates no gradients: {name!r} depends on the size, so each part "
                "makes a new one"
            )
    return None


def _find_backward(block: ast.Module) -> tuple[list[ast.stmt], int]:
    """Return the statements that include the call of ``backward()``, and its index."""
    found = [
        (row, at)
        for row in _walk_bodies(block)
        for at, statement in enumerate(row)
        if any(True for _ in _find_backward_calls(statement))
    ]
    if len(found) == 1:
        return found[0]
    why = "no statement of the block itself calls backward(), only what it calls may"
    if found:
        lines = ", ".join(str(row[at].lineno) for row, at in found)
        why = f"backward() is called at several lines, {lines}"
    raise TrialError(f"gradients cannot be accumulated: {why}")


def _find_backward_calls(statement: ast.stmt) -> Iterator[tuple[ast.Call, ast.expr]]:
    """Yield the calls of ``backward()`` in a statement itself, with their receivers."""
    for node in _walk_own(statement):
        if isinstance(node, ast.Call):
            of = node.func
            if isinstance(of, ast.Attribute) and of.attr == "backward":
                yield node, of.value


def _read_losses(statement: ast.stmt) -> Iterator[str]:
    """Yield the names whose ``backward()`` a statement calls, or that it takes."""
    for call, receiver in _find_backward_calls(statement):
        for loss in (receiver, *call.args[:1]):  # or accelerator.backward(loss)
            if isinstance(loss, ast.Name):
                yield loss.id


def _find_dependent(block: ast.Module, name: str) -> set[str]:
    """Return the names that depend on one, including that one."""
    flows = [_read_flow(one) for row in _walk_bodies(block) for one in row]
    dependent, n_before = {name}, 0
    while len(dependent) > n_before:
        n_before = len(dependent)
        for read, bound in flows:
            if not read.isdisjoint(dependent):
                dependent |= bound
    return dependent


def _read_flow(statement: ast.stmt) -> tuple[set[str], set[str]]:
    """Return the names that a statement reads, and the names that it binds from them.

    Of a compound statement only its head counts, of a function or class its whole body.
    """
    if isinstance(statement, SCOPES):
        return _read_names(ast.walk(statement)), {statement.name}
    nodes = list(_walk_own(statement))
    return _read_names(nodes), _bind_names(nodes)


def _read_names(nodes: Iterable[ast.AST]) -> set[str]:
    names = (node for node in nodes if isinstance(node, ast.Name))
    return {name.id for name in names if isinstance(name.ctx, ast.Load)}


def _bind_names(nodes: Iterable[ast.AST]) -> set[str]:
    """Return the names that are bound, or whose items or attributes are."""
    names = set()
    for node in nodes:
        is_bound, target = isinstance(getattr(node, "ctx", None), ast.Store), node
        while isinstance(target, (ast.Attribute, ast.Subscript)):
            target = target.value
        if is_bound and isinstance(target, ast.Name):
            names.add(target.id)
    return names


def _walk_bodies(node: ast.AST) -> Iterator[list[ast.stmt]]:
    """Yield the lists of statements in a node; those of functions and classes not."""
    for _, value in ast.iter_fields(node):
        items = value if isinstance(value, list) else []
        if items and isinstance(items[0], ast.stmt):
            yield items
        for item in items:
            if isinstance(item, ast.AST) and not isinstance(item, SCOPES):
                yield from _walk_bodies(item)


def _walk_own(statement: ast.stmt) -> Iterator[ast.AST]:
    """Yield a statement and its expressions, without the statements inside of it."""
    todo: list[ast.AST] = [statement]
    while todo:
        node = todo.pop()
        yield node
        todo += [
            child
            for child in ast.iter_child_nodes(node)
            if not isinstance(child, (ast.stmt, ast.ExceptHandler, ast.match_case))
        ]
