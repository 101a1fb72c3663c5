"""Time statements of a recorded cell in place, as ``%time`` and ``%%time`` do.

IPython compiles what it times under a name of its own: the traceback of ``%time
model(x)`` would show ``<timed eval>`` and no line of the cell, and no repair could be
tried. Read :func:`inline_timed` first.
"""

import ast
import re
import sys
import time
from typing import Any, Final, TypeVar

from IPython.core.magics.execution import _format_time
from IPython.utils.timing import clock2

T = TypeVar("T")
OF_CELL: Final = re.compile(r"\s*%%time[ \t]*(?=\n)")
OF_LINE: Final = "get_ipython().run_line_magic('time', "
TIMER: Final = f"__import__({__name__!r}, fromlist=['Timer']).Timer()"


class Timer:
    """Prints the times of a statement or of a block; they begin when it is made."""

    def __init__(self) -> None:
        self._wall, self._cpu = time.time(), clock2()

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        self.finish(None)

    def finish(self, value: T) -> T:
        """Print the times; return the value of the expression that took them."""
        cpu, wall = clock2(), time.time() - self._wall
        user, system = (end - start for end, start in zip(cpu, self._cpu, strict=True))
        parts = f"user {_format_time(user)}, sys: {_format_time(system)}, "
        total = f"total: {_format_time(user + system)}"
        print(f"CPU times: {'' if sys.platform == 'win32' else parts}{total}")  # noqa: T201  as %time does
        print(f"Wall time: {_format_time(wall)}")  # noqa: T201  as well
        return value


def blank_magic(cell: str) -> str:
    """Return a cell with an empty line in place of ``%%time``."""
    return OF_CELL.sub(lambda found: "\n" * found[0].count("\n"), cell, count=1)


def inline_timed(source: str) -> tuple[str, frozenset[int]]:
    """Replace ``%time STATEMENT`` by the statement; return also the timed lines."""
    if OF_LINE not in source:
        return source, frozenset()
    lines = source.splitlines(keepends=True)
    timed = set()
    for node in ast.walk(ast.parse(source)):
        text = read_timed(node)
        if text is not None and isinstance(node, (ast.Expr, ast.Assign)):
            line, value = lines[node.lineno - 1].encode(), node.value
            start, end = line[: value.col_offset], line[value.end_col_offset :]
            lines[node.lineno - 1] = (start + text.encode() + end).decode()
            timed.add(node.lineno)
    return "".join(lines), frozenset(timed)


def read_timed(node: ast.AST) -> str | None:
    """Return the Python statement that a statement times with ``%time``, if it does."""
    if not isinstance(node, (ast.Expr, ast.Assign)):
        return None
    if not ast.unparse(node.value).startswith(OF_LINE):
        return None
    _, argument = node.value.args  # type: ignore[attr-defined]  # it is that call
    text: str = argument.value.strip()
    try:
        found = ast.parse(text).body
    except SyntaxError:  # an option of %time, or another magic
        return None
    is_one = len(found) == 1
    is_right = isinstance(node, ast.Expr) or (is_one and isinstance(found[0], ast.Expr))
    return text if is_one and is_right else None


class TimeStatements(ast.NodeTransformer):
    """Times the statements at some lines."""

    def __init__(self, lines: frozenset[int]) -> None:
        self._lines = lines

    def visit(self, node: ast.AST) -> Any:
        """Return a statement that is timed if it stands at one of the lines."""
        if not (isinstance(node, ast.stmt) and node.lineno in self._lines):
            return self.generic_visit(node)
        timer: Any = ast.parse(TIMER, mode="eval").body
        if isinstance(node, (ast.Expr, ast.Assign)):
            finish = ast.Attribute(timer, "finish", ast.Load())
            node.value = ast.Call(finish, [node.value], [])
            made: ast.stmt = node
        else:
            made = ast.With([ast.withitem(timer)], [node])
        for new in ast.walk(timer):
            if hasattr(new, "lineno"):
                ast.copy_location(new, node)
        return ast.fix_missing_locations(ast.copy_location(made, node))
