"""A failed call and all that is known about it, for the functions that propose edits.

For ``model(x)`` with a wrong layer, that is the text, the failing lines, the operands'
names, what the call accepts instead, and where its sizes come from. Read
:class:`Situation`.
"""

import ast
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType
from typing import Final

from meta_magic.explain.edits.accepted import Accepted
from meta_magic.explain.edits.program_text import (
    Node,
    SourceText,
    Spot,
    is_read,
    read_number,
    span_of,
)
from meta_magic.explain.lineage.traced_runs import Seen
from meta_magic.explain.refused_sizes import Refused
from meta_magic.trace.failed_call import FailedCall
from meta_magic.trace.signature import SourcePosition

NOTHING: Final = Accepted()

FAR: Final = 0.6
"""The cost of an edit on a line that has nothing to do with the failed call."""

DTYPES: Final = re.compile(r"[dst]type|Float|Long|Half|Double|Byte|Int\b|Bool|integer")
"""Part of messages about dtypes."""

STEP: Final = 0.1
"""The additional cost for each line further away from the failed call."""


@dataclass(frozen=True, kw_only=True)
class Situation:
    """A failed call in its program.

    Attributes:
        call: The call; its operands have names.
        makers: By operand, the call site of the call that made it, if it is known.
        accepted: What the call accepts instead.
        seen: The integers that were values of the program's expressions.
        refused: The sizes that the call refuses, with their origins.
        trail: The lines that made what the call was given.
    """

    program: SourceText
    call: FailedCall
    error: str
    makers: Sequence[SourcePosition | None] = ()
    accepted: Accepted = NOTHING
    seen: Seen = field(default_factory=lambda: MappingProxyType({}))
    refused: Sequence[Refused] = ()
    trail: Sequence[int] = ()

    @cached_property
    def lines(self) -> tuple[int, ...]:
        """The lines that led to the call, innermost first; then those of operands."""
        way = [frame.line for frame in reversed(self.call.frames)]
        made = [at.line for at in self.makers if at]
        name = self.call.receiver
        targets = self.program.find(ast.Name, ast.Attribute) if name else []
        bound = [node for node in targets if not is_read(node)]
        own = [node.lineno for node in bound if ast.unparse(node) == name]
        passed = [line for one in self.refused for line in one.passed]
        found = [*way[:1], *own, *passed, *way, *made, *self.trail]
        whole = (line for one in found for line in self.program.list_lines(one))
        return tuple(dict.fromkeys([*found, *whole]))

    def is_failed(self, node: ast.expr) -> bool:
        """Whether an expression is the failed call itself."""
        return span_of(node) in [at.span for at in self.call.frames[-1:]]

    def read_values(self, node: ast.expr) -> set[int]:
        """Return the integers that were values of an expression."""
        written = read_number(node)
        own = () if written is None else (written,)
        return {*self.seen.get(span_of(node), ()), *own}

    def list_passed(self, size: int) -> set[int]:
        """Return the lines of calls that hand on a refused size."""
        own = (one for one in self.refused if one.lineage.size == size)
        lines = (line for one in own for line in one.passed)
        return {n for line in lines for n in self.program.list_lines(line)}

    def find_near(self, *kinds: type[Node]) -> list[Node]:
        """Return the nodes of some kinds at these lines."""
        found = self.program.find(*kinds)
        return [node for node in found if getattr(node, "lineno", 0) in self.lines]

    def weigh(self, node: Spot) -> float:
        """Return the cost of the distance between a node and the failed call."""
        lines = self.program.list_lines(node.lineno)
        known = [self.lines.index(n) for n in lines if n in self.lines]
        return min([FAR, *(STEP * at for at in known)])

    @cached_property
    def is_of_dtypes(self) -> bool:
        """Whether the error is about dtypes."""
        return DTYPES.search(self.error) is not None

    def find_operand(self, number: int) -> Iterator[ast.expr]:
        """Yield the expressions of an operand at the lines of the call."""
        operand = self.call.operands[number]
        names = {*map(_normalize, (operand.name, *operand.aliases))}
        way = [*reversed(self.call.frames)]
        for line in (frame.line for frame in way):
            for node in self.program.find_expressions(line):
                if ast.unparse(node) in names and is_read(node):
                    yield node
        maker = self.makers[number] if number < len(self.makers) else None
        if maker is not None and maker not in way:
            for node in self.program.find_expressions(maker.line):
                if span_of(node) == maker.span:
                    yield node


def list_written(
    program: SourceText, call: FailedCall, makers: Sequence[SourcePosition | None]
) -> list[int]:
    """Return the operands of a call that the program's text has."""
    situation = Situation(program=program, call=call, error="", makers=makers)
    numbers = range(len(call.operands))
    return [n for n in numbers if next(situation.find_operand(n), None) is not None]


def _normalize(name: str) -> str:
    """Return an expression as ``ast.unparse`` writes it."""
    try:
        return ast.unparse(ast.parse(name, mode="eval"))
    except (SyntaxError, ValueError):
        return name
