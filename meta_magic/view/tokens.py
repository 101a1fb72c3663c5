"""Which parts of Python text are keywords, strings, numbers: as Pygments reads it."""

from collections.abc import Iterable, Iterator
from itertools import groupby
from operator import itemgetter
from typing import Any, Final

from pygments.lexers.python import PythonLexer
from pygments.token import Token

__all__ = ["write_tokens"]

PLAIN: Final = 0
NUMBER_BY_KIND: Final = {
    Token.Keyword: 1,
    Token.Operator.Word: 1,
    Token.Literal.String: 2,
    Token.Literal.Number: 3,
    Token.Comment: 4,
    Token.Name.Builtin.Pseudo: PLAIN,  # self
    Token.Name.Builtin: 5,
    Token.Name.Class: 5,
    Token.Name.Decorator: 5,
    Token.Name.Function: 5,
}
"""How the wire calls kinds, which ``static/source.css`` colours."""


def write_tokens(text: str) -> list[list[int]]:
    """Return for each line the numbers of its kinds and how long each goes on, in turn.

    Lengths are units of UTF-16, as JavaScript counts. What a line ends with that is of
    no kind is left out.
    """
    lines: list[list[tuple[int, int]]] = [[]]
    for _, kind, part in PythonLexer().get_tokens_unprocessed(text):
        number = find_number(kind)
        first, *others = (count_units(line) for line in part.split("\n"))
        lines[-1].append((number, first))
        lines += [[(number, length)] for length in others]
    return [[*join_stretches(filter(itemgetter(1), line))] for line in lines]


def find_number(kind: Any) -> int:
    """Return the number of a kind of Pygments'; they lie in each other."""
    return next((n for known, n in NUMBER_BY_KIND.items() if kind in known), PLAIN)


def count_units(part: str) -> int:
    """Return how long JavaScript takes a text for."""
    return len(part.encode("utf-16-le", "surrogatepass")) // 2


def join_stretches(line: Iterable[tuple[int, int]]) -> Iterator[int]:
    """Yield kind and length of stretches, neighbours of one kind as one."""
    stretches = [
        (kind, sum(length for _, length in run))
        for kind, run in groupby(line, key=itemgetter(0))
    ]
    if stretches and stretches[-1][0] == PLAIN:
        stretches.pop()
    for kind, length in stretches:
        yield from (kind, length)
