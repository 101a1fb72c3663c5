"""The source of notebook functions that a cell called, and its syntax colours.

The report shows the text of a function that another cell of the notebook defined; a
function of a file is shown by its path only. Pygments finds keywords and strings.
"""

import ast
import linecache
from collections.abc import Iterable, Iterator
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any, Final

from pygments.lexers.python import PythonLexer
from pygments.token import Token

from meta_magic.trace.program import Program


def find_texts(program: Program) -> Iterator[dict[str, Any]]:
    """Yield file, function, first line and text of called notebook functions."""
    scopes = {(position.file, position.function) for position in program.positions}
    for file, scope in sorted(scopes):
        text = "".join(linecache.getlines(file)) if file in linecache.cache else ""
        if not text or Path(file).exists():
            continue
        for name, first, last in walk_functions(parse(text)):
            if name == scope:
                # Not splitlines(), which also splits at a form feed.
                body = "\n".join(text.split("\n")[first - 1 : last])
                yield {
                    "file": file,
                    "scope": scope,
                    "first": first,
                    "text": body,
                    "tokens": write_tokens(body),
                }


def parse(text: str) -> ast.AST:
    """Return the tree of a text; an empty one if it is no Python, as a template."""
    try:
        return ast.parse(text)
    except (SyntaxError, ValueError):  # of a zero byte
        return ast.Module(body=[], type_ignores=[])


def walk_functions(tree: ast.AST, prefix: str = "") -> Iterator[tuple[str, int, int]]:
    """Yield the qualified name, first and last line of each function in a tree."""
    for node in ast.iter_child_nodes(tree):
        name = getattr(node, "name", None)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            first = min([node.lineno, *(d.lineno for d in node.decorator_list)])
            yield prefix + node.name, first, node.end_lineno or node.lineno
            yield from walk_functions(node, f"{prefix}{node.name}.<locals>.")
        elif isinstance(node, ast.ClassDef):
            yield from walk_functions(node, f"{prefix}{name}.")
        else:
            yield from walk_functions(node, prefix)


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
"""Numbers of token kinds in the payload; ``static/source.css`` has their colours."""


def write_tokens(text: str) -> list[list[int]]:
    """Return for each line pairs of a kind's number and its length, as a flat list.

    Lengths are UTF-16 units, as JavaScript counts. Plain text at the end of a line is
    left out.
    """
    lines: list[list[tuple[int, int]]] = [[]]
    for _, kind, part in PythonLexer().get_tokens_unprocessed(text):
        # Kinds of Pygments contain their subkinds.
        number = next((n for k, n in NUMBER_BY_KIND.items() if kind in k), PLAIN)
        first, *others = (count_units(line) for line in part.split("\n"))
        lines[-1].append((number, first))
        lines += [[(number, length)] for length in others]
    return [[*join_stretches(filter(itemgetter(1), line))] for line in lines]


def count_units(part: str) -> int:
    """Return the length of a text in JavaScript."""
    return len(part.encode("utf-16-le", "surrogatepass")) // 2


def join_stretches(line: Iterable[tuple[int, int]]) -> Iterator[int]:
    """Yield kind and length of stretches; adjacent ones of a kind are joined."""
    stretches = [
        (kind, sum(length for _, length in run))
        for kind, run in groupby(line, key=itemgetter(0))
    ]
    if stretches and stretches[-1][0] == PLAIN:
        stretches.pop()
    for kind, length in stretches:
        yield from (kind, length)
