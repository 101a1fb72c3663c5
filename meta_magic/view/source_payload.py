"""The source of other cells and files that a block ran, and its syntax colours.

The report shows the earlier cells, and the functions of the user's own files, whose
lines called operators. Pygments finds keywords and strings. Read :func:`find_texts`
first.
"""

import ast
import linecache
from collections.abc import Iterable, Iterator
from functools import lru_cache
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any, Final

from pygments.lexers.python import PythonLexer
from pygments.token import Token

from meta_magic.session.raised_calls import USERS, home_of
from meta_magic.trace.earlier_cells import name_cell
from meta_magic.trace.program import Program
from meta_magic.trials.slices import shorten_path


def name_file(file: str) -> str:
    """Return ``In[2]`` for a cell of the notebook; other names stay."""
    return name_cell(file) or file


def find_texts(program: Program, own: str) -> Iterator[dict[str, Any]]:
    """Yield the texts besides the cell's own that ran: cells in order, then files.

    Args:
        own: File name of the cell.

    Yields:
        File, heading, first line and text with its colours: of a whole cell, or of a
        function of a file.
    """
    lines_by_scope: dict[tuple[str, str], list[int]] = {}
    for at in program.positions:
        if at.file != own:
            lines_by_scope.setdefault((at.file, at.function), []).append(at.line)
    cells = {file: name_cell(file) for file, _ in lines_by_scope}
    for file in sorted(
        filter(cells.get, cells), key=lambda file: int(cells[file][3:-1])
    ):
        text = "".join(linecache.getlines(file)).rstrip()
        yield write_text(file, cells[file], 1, text)
    for (file, scope), lines in sorted(lines_by_scope.items()):
        if cells[file] or home_of(file) != USERS:
            continue
        # Not splitlines(), which also splits at a form feed.
        whole = "".join(linecache.getlines(file))
        for name, first, last in walk_functions(parse(whole)):
            # The file may have been changed since.
            if name == scope and first <= min(lines) and max(lines) <= last:
                body = "\n".join(whole.split("\n")[first - 1 : last])
                heading = (
                    f"{shorten_path(file)}, {scope}" if Path(file).exists() else scope
                )
                yield write_text(file, heading, first, body)


def write_text(file: str, heading: str, first: int, text: str) -> dict[str, Any]:
    """Return a text that begins at a line of a file."""
    return {
        "file": name_file(file),
        "heading": heading,
        "first": first,
        "text": text,
        "tokens": write_tokens(text),
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


@lru_cache(64)
def write_tokens(text: str) -> list[list[int]]:
    """Return for each line pairs of a kind's number and its length, as a flat list.

    Lengths are UTF-16 units, as JavaScript counts. Plain text at the end of a line is
    left out.
    """
    lines: list[list[tuple[int, int]]] = [[]]
    for _, kind, part in PythonLexer().get_tokens_unprocessed(text):
        # Kinds of Pygments contain their subkinds.
        number = next((n for k, n in NUMBER_BY_KIND.items() if kind in k), PLAIN)
        coded = (o.encode("utf-16-le", "surrogatepass") for o in part.split("\n"))
        first, *others = (len(line) // 2 for line in coded)
        lines[-1].append((number, first))
        lines += [[(number, length)] for length in others]
    return [[*join_stretches(filter(itemgetter(1), line))] for line in lines]


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
