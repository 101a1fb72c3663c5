"""The integers that the expressions of a cell stood for, from one more run of it.

The cell is run again in a child, its syntax tree rewritten: each expression that may
stand for an integer is noted on its way. What raises there is as it was.
"""

import ast
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from meta_magic.errors import TrialError
from meta_magic.trace.trace import Trace
from meta_magic.trials.trial import ask_trial

__all__ = ["Seen", "note", "see_numbers"]

Seen = Mapping[int, frozenset[int]]
"""By the number of a node among all of a tree, as ``ast.walk`` has them."""

NOTE: Final = "__meta_magic_note__"

LOAD: Final = ast.Load()

NUMBERS: Final = (ast.Name, ast.Attribute, ast.BinOp, ast.Call, ast.Subscript)

SECONDS: Final = 2.0
"""What the run may take."""

MAX_VALUES: Final = 8
"""How many values of one expression are kept."""

seen_by_node: dict[int, set[int]] = defaultdict(set)
"""What was noted, in the child that runs the rewritten cell."""


def see_numbers(trace: Trace, text: str) -> Seen:
    """Return the integers that the expressions of a trace's cell stood for.

    Args:
        trace: The trace.
        text: The cell as Python.
    """
    if trace.rerun is None or trace.rerun.text is None:  # a part of a file
        return {}
    again = replace(trace, rerun=replace(trace.rerun, text=rewrite(text)))
    try:
        return ask_trial(again, read_seen, seconds=SECONDS)
    except TrialError:
        return {}


def note(number: int, value: Any) -> Any:
    """Return a value, and keep it if it is an integer."""
    values = seen_by_node[number]
    if type(value) is int and len(values) < MAX_VALUES:
        values.add(value)
    return value


def read_seen(_: Trace, __: Mapping[str, Any]) -> Seen:
    """Return what was noted; called in the child."""
    return {node: frozenset(values) for node, values in seen_by_node.items() if values}


def rewrite(text: str) -> str:
    """Return a cell that notes its integers, and ends quietly where it raises."""
    tree = ast.parse(text)
    numbers = {id(node): number for number, node in enumerate(ast.walk(tree))}
    body = Noting(numbers).visit(tree).body
    head = ast.parse(f"from {__name__} import note as {NOTE}").body
    caught = ast.ExceptHandler(
        ast.Name("BaseException", ast.Load()), None, [ast.Pass()]
    )
    whole = ast.Try(body or [ast.Pass()], [caught], [], [])
    return ast.unparse(ast.fix_missing_locations(ast.Module([*head, whole], [])))


class Noting(ast.NodeTransformer):
    """Has each expression that may stand for an integer be noted.

    Args:
        numbers: Of each node, by ``id``.
    """

    def __init__(self, numbers: Mapping[int, int]) -> None:
        self._numbers = numbers

    def generic_visit(self, node: ast.AST) -> ast.AST:
        """Visit what is below a node, and wrap it itself."""
        super().generic_visit(node)
        if not isinstance(node, NUMBERS):
            return node
        if not isinstance(getattr(node, "ctx", LOAD), ast.Load):
            return node
        arguments: list[ast.expr] = [ast.Constant(self._numbers[id(node)]), node]
        return ast.Call(ast.Name(NOTE, LOAD), arguments, [])

    def visit_JoinedStr(self, node: ast.JoinedStr) -> ast.AST:
        """Leave a text as it is: its parts have no columns before Python 3.12."""
        return node

    def visit_MatchValue(self, node: ast.MatchValue) -> ast.AST:
        """Leave a pattern as it is."""
        return node
