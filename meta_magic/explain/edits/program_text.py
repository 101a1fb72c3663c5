"""The user's code as text and as syntax tree, and edits that rewrite stretches of it.

A repair changes ``x @ w`` in the user's line to ``x @ w.T`` and leaves comments,
spaces and all other lines alone; ``ast.unparse`` would not. :class:`SourceText` makes
the edits, :func:`apply_edit` applies one. No edit adds or removes a line.
"""

import ast
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final, NamedTuple, TypeAlias, TypeVar

from meta_magic.trace.signature import Span

MAX_EDITS: Final = 80

CROWD: Final = 0.02
"""Added ``n`` times to the cost of the ``n``-th edit of a family: a long family must
not hold up the others."""

SOLVED: Final = 0.6
"""How much earlier an edit is tried if the call is known to accept its result."""

LOSSY: Final = 0.3
"""The cost of leaving something out."""


class Stretch(NamedTuple):
    """A stretch of a line, and its replacement.

    Attributes:
        column: Where it begins, in UTF-8 bytes from 0.
    """

    line: int
    column: int
    end_column: int
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Edit:
    """Stretches of a program that are replaced together.

    Attributes:
        stretches: They do not overlap.
        cost: How unlikely it is that the user meant this; from 0 to about 4.
        is_solved: Whether the call is known to accept it: it is tried earlier.
        is_lossy: Whether it leaves out a part of what the program computes, so that the
            call is accepted; such an edit is shown after the others.
    """

    stretches: tuple[Stretch, ...]
    cost: float
    is_solved: bool = False
    is_lossy: bool = False

    @property
    def lines(self) -> tuple[int, ...]:
        """The lines that are changed, in order."""
        return tuple(sorted({stretch.line for stretch in self.stretches}))


def apply_edit(source: str, edit: Edit, first_line: int = 1) -> str:
    """Return a source, which begins at line ``first_line``, after an edit."""
    lines = [line.encode() for line in source.split("\n")]
    for line, column, end, text in sorted(edit.stretches, reverse=True):
        old = lines[line - first_line]
        lines[line - first_line] = old[:column] + text.encode() + old[end:]
    return b"\n".join(lines).decode()


def join_edits(edits: Iterable[Edit], cost: float) -> Edit:
    """Return one edit that makes several."""
    stretches = (stretch for edit in edits for stretch in edit.stretches)
    return Edit(stretches=tuple(dict.fromkeys(stretches)), cost=cost)


def mark_lossy(edits: Iterable[Edit]) -> Iterator[Edit]:
    """Yield edits as such that leave something out."""
    for edit in edits:
        yield replace(edit, cost=edit.cost + LOSSY, is_lossy=True)


def sort_edits(*families: Iterable[Edit]) -> list[Edit]:
    """Return edits without duplicates, in the order in which they are tried.

    The likeliest come first, and those whose result the call is known to accept. A
    family of many edits lets others go before its last ones.
    """
    best: dict[object, Edit] = {}
    turns: dict[object, float] = {}
    for family in families:
        ordered = sorted(family, key=_find_turn)
        for at, edit in enumerate(one for one in ordered if one.stretches):
            key = frozenset(edit.stretches)
            turn = _find_turn(edit) + CROWD * at
            turns[key] = min(turn, turns.get(key, turn))
            if key not in best or edit.cost < best[key].cost:
                best[key] = edit
    return [best[key] for key in sorted(best, key=turns.__getitem__)][:MAX_EDITS]


def _find_turn(edit: Edit) -> float:
    return edit.cost - SOLVED * edit.is_solved


Spot: TypeAlias = ast.expr | ast.stmt | ast.keyword
"""A node with a position in the text."""

Node = TypeVar("Node", bound=ast.AST)

ATOMS: Final = (ast.Name, ast.Attribute, ast.Call, ast.Subscript)
"""Expressions that need no brackets before a method."""

SCOPES: Final = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)

FACTORIES: Final = frozenset(
    (
        *("randn", "rand", "zeros", "ones", "empty", "full", "randint", "arange"),
        *("tensor", "as_tensor", "linspace", "normal"),
    )
)
"""Functions of torch that make data."""

WINDOWS: Final = frozenset({"kernel_size", "stride", "padding", "dilation"})
"""Arguments that say which elements a pool or convolution reads."""

COMMON: Final = frozenset({"torch", "nn", "F", "np", "numpy"})

NOWHERE: Final = -1
"""The scope of code outside of functions."""


class Called(NamedTuple):
    """A call in the text.

    Attributes:
        name: The last part of the function's name: ``Linear`` of ``nn.Linear``.
        owner: The expression before that part; None if there is none.
    """

    node: ast.Call
    name: str
    owner: ast.expr | None


class SourceText:
    """A program as text and as syntax tree.

    Only nodes on ``lines`` are kept; None for all.

    Raises:
        SyntaxError: The text is no Python.
    """

    def __init__(self, text: str, lines: Collection[int] | None = None) -> None:
        self.text = text
        self._lines = [line.encode() for line in text.split("\n")]
        walked = [*ast.walk(ast.parse(text))]
        self.nodes = [
            node
            for node in walked
            if lines is None or getattr(node, "lineno", None) in lines
        ]
        self._parents = {
            id(below): node
            for node in self.nodes
            for below in ast.iter_child_nodes(node)
        }
        self._in_texts = {
            id(below)
            for node in self.nodes
            if isinstance(node, ast.JoinedStr)
            for below in ast.walk(node)
        }
        self.calls = [
            Called(node, name_of(node), getattr(node.func, "value", None))
            for node in self.find(ast.Call)
            if isinstance(node.func, (ast.Attribute, ast.Name))
        ]

    @cached_property
    def imported(self) -> frozenset[str]:
        """The names that the program imports, or that users commonly import before."""
        names = (alias.asname or alias.name for alias in self.find(ast.alias))
        return frozenset(name.partition(".")[0] for name in names) | COMMON

    def list_lines(self, line: int) -> range:
        """Return the lines of the statement that a line is of; of a body, the line."""
        return self._lines_by_line.get(line, range(line, line + 1))

    @cached_property
    def _lines_by_line(self) -> dict[int, range]:
        simple = (n for n in self.find(ast.stmt) if not hasattr(n, "body"))
        spans = (range(n.lineno, (n.end_lineno or n.lineno) + 1) for n in simple)
        return {line: span for span in spans for line in span}

    def find(self, *kinds: type[Node]) -> list[Node]:
        """Return the nodes of some kinds, outer ones first."""
        return [node for node in self.nodes if isinstance(node, kinds)]

    def find_expressions(self, line: int) -> list[ast.expr]:
        """Return the expressions that begin on a line, outer ones first."""
        return [node for node in self.find(ast.expr) if node.lineno == line]

    def read(self, node: Spot) -> str:
        """Return the text of a node."""
        lines = self._lines[node.lineno - 1 : node.end_lineno]
        lines[-1] = lines[-1][: node.end_col_offset]
        lines[0] = lines[0][node.col_offset :]
        return b"\n".join(lines).decode()

    def walk_up(self, node: ast.AST) -> Iterator[ast.AST]:
        """Yield the nodes around a node, the innermost first."""
        while id(node) in self._parents:
            node = self._parents[id(node)]
            yield node

    def find_scope(self, node: ast.AST) -> int:
        """Return a number for the innermost function around a node."""
        found = (id(above) for above in self.walk_up(node) if isinstance(above, SCOPES))
        return next(found, NOWHERE)

    def find_statement(self, node: ast.AST) -> ast.stmt | None:
        """Return the innermost statement around a node, or the node itself."""
        above = (node, *self.walk_up(node))
        return next((one for one in above if isinstance(one, ast.stmt)), None)

    def is_data(self, node: ast.AST) -> bool:
        """Whether a node is within a call that makes data."""
        for above in self.walk_up(node):
            if isinstance(above, ast.stmt):
                return False
            if isinstance(above, ast.Call):
                return name_of(above) in FACTORIES
        return False

    def is_window(self, node: ast.AST) -> bool:
        """Whether a node is a size or step of a window of a pool or convolution."""
        for above in self.walk_up(node):
            if isinstance(above, ast.keyword) and above.arg in WINDOWS:
                return True
            if isinstance(above, (ast.Call, ast.stmt)):
                return isinstance(above, ast.Call) and "pool" in name_of(above).lower()
        return False

    def replace(self, node: Spot, text: str, cost: float) -> Iterator[Edit]:
        """Yield the edit that replaces a node, if it is on one line."""
        if node.lineno == node.end_lineno and id(node) not in self._in_texts:
            where = node.lineno, node.col_offset, _end_of(node)[1]
            yield Edit(stretches=(Stretch(*where, text),), cost=cost)

    def extend(self, node: ast.expr, template: str, cost: float) -> Iterator[Edit]:
        """Yield the edit that puts text around an expression, ``{}`` for it."""
        before, _, after = template.partition("{}")
        is_tight = after.startswith((".", "[")) or before.endswith("* ")
        if not isinstance(node, ATOMS) and (is_tight or after.startswith(" ")):
            before, after = f"{before}(", f"){after}"
        if after.startswith(" ") or before.endswith("* "):
            above = next(self.walk_up(node), None)
            if isinstance(above, (ast.BinOp, ast.UnaryOp, ast.Attribute)):
                before, after = f"({before}", f"{after})"
        start = node.lineno, node.col_offset
        made = (
            Stretch(*start, start[1], before),
            Stretch(*_end_of(node), _end_of(node)[1], after),
        )
        stretches = tuple(stretch for stretch in made if stretch.text)
        if is_read(node) and id(node) not in self._in_texts:
            yield Edit(stretches=stretches, cost=cost)

    def add_argument(self, node: ast.Call, text: str, cost: float) -> Iterator[Edit]:
        """Yield the edit that adds a last argument to a call."""
        given: list[ast.expr | ast.keyword] = [*node.args, *node.keywords]
        last = max(given, key=_end_of, default=None)
        line, column = _end_of(node)
        at = line, column - 1
        if last is not None and _end_of(last)[0] != line:
            at = _end_of(last)
        begun = self._lines[at[0] - 1][: at[1]]
        comma = "" if last is None or begun.endswith(b", ") else ", "
        yield Edit(stretches=(Stretch(*at, at[1], comma + text),), cost=cost)

    def rename(self, called: Called, name: str, cost: float) -> Iterator[Edit]:
        """Yield the edit that calls another function of the same owner."""
        line, end = _end_of(called.node.func)
        start = end - len(called.name.encode())
        yield Edit(stretches=(Stretch(line, start, end, name),), cost=cost)


def name_of(call: ast.Call) -> str:
    """Return the last part of the name of the called function."""
    own = getattr(call.func, "attr", None) or getattr(call.func, "id", None)
    return own or ast.unparse(call.func).rpartition(".")[2]


def span_of(node: ast.expr | ast.stmt) -> Span:
    """Return the position of a node."""
    return node.lineno, node.col_offset, node.end_lineno, node.end_col_offset


def _end_of(node: Spot) -> tuple[int, int]:
    return node.end_lineno or node.lineno, node.end_col_offset or 0


def is_read(node: ast.expr) -> bool:
    """Whether an expression is read, and not assigned to."""
    return isinstance(getattr(node, "ctx", ast.Load()), ast.Load)


def read_number(node: ast.AST) -> int | None:
    """Return the integer that a number or a product of numbers is, or None."""
    if isinstance(node, ast.Constant):
        return node.value if type(node.value) is int else None
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        value = read_number(node.operand)
        return None if value is None else -value
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
        left, right = read_number(node.left), read_number(node.right)
        return None if left is None or right is None else left * right
    return None
