"""The source that a block ran, its syntax colours, and why the block failed, as JSON.

The report shows the earlier cells, and the functions of the user's own files, whose
lines called operators. Read :func:`find_texts` first.
"""

import ast
import builtins
import linecache
import re
import tokenize
from collections.abc import Iterator
from contextlib import suppress
from functools import lru_cache
from io import StringIO
from keyword import iskeyword
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from meta_magic.session.raised_calls import USERS, home_of
from meta_magic.trace.notes import name_cell
from meta_magic.trace.program import Program
from meta_magic.trials.slices import shorten_path

if TYPE_CHECKING:
    from meta_magic.explain.explanations import Explanation, Repair
    from meta_magic.explain.lineage.lineage_records import Lineage
    from meta_magic.trace.failed_call import Operand
    from meta_magic.trace.trace import Trace


def name_file(file: str) -> str:
    """Return ``In[2]`` for a cell of the notebook; other names stay."""
    return name_cell(file) or file


def find_texts(program: Program, own: str) -> Iterator[dict[str, Any]]:
    """Yield the texts besides the cell's own that ran: cells in order, then files.

    Each has file, heading, first line, and the coloured text of a cell or function.
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


PLAIN, KEYWORD, STRING, NUMBER, COMMENT, NAME = range(6)
"""Kinds of tokens in the payload; ``static/source.css`` has their colours."""

KIND_BY_TYPE: Final = {
    tokenize.NUMBER: NUMBER,
    tokenize.COMMENT: COMMENT,
    tokenize.STRING: STRING,
    # From Python 3.12 on an f-string is several tokens.
    **{
        getattr(tokenize, f"FSTRING_{part}", None): STRING
        for part in ("START", "MIDDLE", "END")
    },
}
BUILTINS: Final = frozenset(dir(builtins))


def find_colours(text: str) -> Iterator[tuple[int, tuple[int, int], tuple[int, int]]]:
    """Yield kind, start and end of each token that is not plain, until a syntax error.

    Starts and ends are line, from 1, and column.
    """
    before = ""
    # A line of IPython, as `!ls`, may be no Python; nor may a lone surrogate.
    with suppress(tokenize.TokenError, SyntaxError, UnicodeError):
        for token in tokenize.generate_tokens(StringIO(text).readline):
            kind = KIND_BY_TYPE.get(token.type, PLAIN)
            if iskeyword(token.string):
                kind = KEYWORD
            elif before in {"def", "class"} or (
                token.string in BUILTINS and before != "."
            ):
                kind = NAME
            if kind != PLAIN:
                yield kind, token.start, token.end
            before = token.string


@lru_cache(64)
def write_tokens(text: str) -> list[list[int]]:
    """Return for each line pairs of a kind's number and its length, as a flat list.

    Lengths are UTF-16 units, as JavaScript counts. Plain text at the end of a line is
    left out.
    """
    lines = text.split("\n")
    written: list[list[int]] = [[] for _ in lines]
    ends = [0] * len(lines)  # of what is written of each line
    for kind, (top, left), (bottom, right) in find_colours(text):
        for at in range(top - 1, bottom):
            line = lines[at]
            first = left if at == top - 1 else 0
            end = right if at == bottom - 1 else len(line)
            before, coloured = line[ends[at] : first], line[first:end]
            for number, part in ((PLAIN, before), (kind, coloured)):
                if part:
                    n_units = len(part.encode("utf-16-le", "surrogatepass")) // 2
                    written[at] += (number, n_units)
            ends[at] = end
    return written


def explanation_payload(trace: "Trace") -> dict[str, Any] | None:
    """Return why a block failed; None if it did not fail, or nothing is known."""
    found = trace.explanation
    if found is None or found.is_silent:
        return None
    from meta_magic.explain.explanations import MAX_CALLERS, MAX_OPERANDS, walk_repairs  # noqa: PLC0415  few fail

    return {
        "where": found.where,
        "expression": found.expression,
        "callers": found.callers[-MAX_CALLERS:],
        "module": found.module,
        "given": [write_operand(one, found) for one in found.given[:MAX_OPERANDS]],
        "n_more": max(len(found.given) - MAX_OPERANDS, 0),
        "rules": [*found.rules, *found.made, *filter(None, [found.taken])],
        "lineages": [*map(lineage_payload, found.lineages)],
        "repairs": [write_repair(repair, trace) for repair in found.repairs],
        "unrepaired": "" if found.repairs else next(walk_repairs(found), ""),
    }


def write_operand(operand: "Operand", found: "Explanation") -> dict[str, Any]:
    """Return an operand; ``marked`` are the dimensions that the rules name."""
    sentences = (*found.rules, *(lineage.name for lineage in found.lineages))
    shape = operand.geometry.shape
    return {
        "name": operand.name,
        "tensor": operand.tensor,
        "shape": shape,
        "dtype": str(operand.geometry.dtype).removeprefix("torch."),
        "marked": [
            dim for dim in range(len(shape)) if has_dim(sentences, dim, operand.name)
        ],
    }


def has_dim(sentences: tuple[str, ...], dim: int, name: str) -> bool:
    """Whether sentences name a dimension of an operand."""
    pattern = re.compile(rf"dimension {dim} of {re.escape(name)}(?![\w.\[(])")
    return any(map(pattern.search, sentences))


def lineage_payload(lineage: "Lineage") -> dict[str, Any]:
    """Return where a size comes from; each step comes before its sources."""
    return {
        "name": lineage.name.removesuffix(f" ({lineage.size})"),
        "caveat": lineage.caveat,
        "steps": [
            {
                "depth": depth,
                "value": step.value,
                "text": f"{step.text} ..." if is_repeated else step.text,
                "line": step.line or 0,
            }
            for depth, step, is_repeated in lineage.walk()
        ],
    }


def write_repair(repair: "Repair", trace: "Trace") -> dict[str, Any]:
    """Return a repair; ``source`` is the new cell, "" outside of notebooks."""
    head = "" if repair.path else trace.cell.head
    return {
        "diff": repair.diff,
        "cell": repair.cell,
        "source": head and head + repair.source,
        "consequence": repair.consequence,
    }
