"""Compile a cell's body as IPython would, under the file name of the whole cell.

IPython's ``run_cell`` cannot run the body: a failing cell would succeed, its value be
lost, and its line numbers be wrong. Blank lines replace ``%%meta``, so that tracebacks,
breakpoints and ``inspect.getsource`` see the cell as it was typed.

:func:`inline_timed` puts what ``%time`` times into the cell, as IPython compiles that
under a name of its own. :class:`History` keeps the cells that ran, for explanations.
"""

import ast
import inspect
import linecache
import re
import sys
import time
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from time import process_time
from traceback import walk_stack, walk_tb
from types import CodeType
from typing import Any, Final, TypeVar

from IPython.core.magics.execution import _format_time
from IPython.utils.timing import clock2

from meta_magic.trace.notes import EarlierCell

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


TOP_LEVEL_AWAIT: Final = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
ASSIGNMENTS: Final = (ast.Assign, ast.AugAssign, ast.AnnAssign)


class Body:
    """The compiled body of a cell.

    ``name`` is the file of the ``%%meta`` cell around this one; IPython's if None.
    """

    def __init__(
        self, shell: Any, cell: str, raw: str | None, name: str | None = None
    ) -> None:
        self._shell = shell
        head = lines_above(cell, raw)
        known = raw if head and raw is not None else cell
        typed, cell = cell, blank_magic(cell)
        self._is_timed = cell != typed
        source, timed = inline_timed(shell.transform_cell(cell))
        # transform_cell drops leading blank lines, which would shift all others.
        gap = max(count_leading_blanks(cell) - count_leading_blanks(source), 0)
        above = [*head, *["\n"] * gap]
        self.text = padded = "\n" * len(above) + source
        self.first_line = len(head) + 1
        self.head = "".join(head) or ("%meta " if raw is None else "%%meta\n")
        self.name = self._cache(padded, known) if name is None else name
        commented = [f"# {line}" if line.strip() else line for line in above]
        lines = commented + source.splitlines(keepends=True)
        known_lines = len("".join(lines)), None, lines, self.name
        linecache.cache[self.name] = known_lines
        # IPython 7 restores linecache from this copy before it shows a traceback.
        getattr(linecache, "_ipython_cache", {})[self.name] = known_lines
        self._compile(padded, frozenset(line + len(above) for line in timed))

    def _cache(self, source: str, raw: str) -> str:
        """Register the source with IPython; an equal cell keeps its number."""
        compiler = self._shell.compile
        numbers = getattr(compiler, "_filename_map", {})  # absent in IPython 7
        known = dict(numbers)
        name: str = compiler.cache(source, cell_number(self._shell), raw_code=raw)
        if name in known:
            numbers[name] = known[name]
        return name

    def _compile(self, source: str, timed: frozenset[int]) -> None:
        shell = self._shell
        tree = shell.compile.ast_parse(source, filename=self.name)
        tree = shell.transform_ast(TimeStatements(timed).visit(tree) if timed else tree)
        mode = shell.ast_node_interactivity
        if mode == "last_expr_or_assign":
            show_last_assignment(tree.body)
        last = None
        if mode.startswith("last_expr") and tree.body:
            last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
        n_shown = {"all": len(tree.body), "last": 1}.get(mode, 0)
        shown = tree.body[len(tree.body) - n_shown :]
        tree.body = tree.body[: len(tree.body) - n_shown]
        flags = TOP_LEVEL_AWAIT if shell.autoawait else 0
        with shell.compile.extra_flags(flags):
            self._codes = [shell.compile(tree, self.name, "exec")]
            for node in shown:
                unit = ast.Interactive([node])
                self._codes.append(shell.compile(unit, self.name, "single"))
            self._value: CodeType | None = None
            if last is not None:
                expression = ast.Expression(last.value)
                self._value = shell.compile(expression, self.name, "eval")

    @property
    def is_async(self) -> bool:
        """Whether the body awaits something at its top level."""
        return any(code.co_flags & inspect.CO_COROUTINE for code in self._all_codes())

    def run(self) -> object:
        """Run the body in the user's namespace and return its last expression."""
        __tracebackhide__ = True
        namespaces = self._shell.user_global_ns, self._shell.user_ns
        value = None
        with self._time():
            for code in self._all_codes():
                value = eval(code, *namespaces)  # noqa: S307  the user's own cell
        return value if self._value is not None else None

    async def run_async(self) -> object:
        """Do as :meth:`run`, awaiting what the body awaits."""
        __tracebackhide__ = True
        namespaces = self._shell.user_global_ns, self._shell.user_ns
        value = None
        with self._time():
            for code in self._all_codes():
                value = eval(code, *namespaces)  # noqa: S307  the user's own cell
                if code.co_flags & inspect.CO_COROUTINE:
                    value = await value
        return value if self._value is not None else None

    def _time(self) -> AbstractContextManager[None]:
        return Timer() if self._is_timed else nullcontext()

    @property
    def names(self) -> set[str]:
        """The names that its code uses."""
        from meta_magic.trace.options import list_names  # noqa: PLC0415  needs torch

        return {name for code in self._all_codes() for name in list_names(code)}

    def _all_codes(self) -> list[CodeType]:
        return [*self._codes, *([] if self._value is None else [self._value])]


def lines_above(cell: str, raw: str | None) -> list[str]:
    """Return the lines of the whole cell above the body."""
    if raw is None:
        return []
    whole, body = raw.rstrip().splitlines(), cell.rstrip().splitlines()
    n_above = len(whole) - len(body)
    tail = [line.strip() for line in whole[n_above:]]
    if n_above <= 0 or tail != [line.strip() for line in body]:
        return []
    return [f"{line}\n" for line in whole[:n_above]]


def count_leading_blanks(text: str) -> int:
    """Return the number of blank lines that a text begins with."""
    lines = text.splitlines()
    return next((i for i, line in enumerate(lines) if line.strip()), len(lines))


def show_last_assignment(nodes: list[ast.stmt]) -> None:
    """Append the name that the last statement assigns to."""
    if not nodes or not isinstance(nodes[-1], ASSIGNMENTS):
        return
    last = nodes[-1]
    target = last.targets[0] if isinstance(last, ast.Assign) else last.target
    if isinstance(target, ast.Name):
        shown = ast.Expr(ast.Name(target.id, ast.Load()))
        nodes.append(ast.fix_missing_locations(ast.copy_location(shown, last)))


def cell_number(shell: Any) -> int:
    """Return the number of the running cell, as in ``In[n]``."""
    number = None
    for frame, _ in walk_stack(sys._getframe()):
        if frame.f_code.co_name == "run_cell_async":
            # execution_count of the shell: some versions raise it before, some after.
            number = getattr(frame.f_locals.get("result"), "execution_count", None)
            break
    return int(shell.execution_count if number is None else number)


MAX_CELLS: Final = 1000
"""How many cells are kept."""

TRANSPARENT: Final = frozenset({"%%meta", "%%time", "%%capture"})
"""Cell magics that run their body in the user's namespace."""


class History:
    """Keeps the cells that ran."""

    def __init__(self, shell: Any) -> None:
        self._shell = shell
        self._started = 0.0
        self.cells: list[EarlierCell] = []
        earlier = shell.history_manager.input_hist_raw
        for number in range(1, min(cell_number(shell), len(earlier))):
            self._keep(number, earlier[number], 0.0)

    def start(self) -> None:
        """Note that a cell begins."""
        self._started = process_time()

    def end(self, result: Any) -> None:
        """Keep a cell that ended, and the line at which it raised, if it did."""
        info, error = result.info, result.error_in_exec
        line = 0 if error is None else find_line(error)
        has_run = result.success or line
        if has_run and getattr(info, "store_history", False):
            number = result.execution_count or self._shell.execution_count
            self._keep(number, info.raw_cell, process_time() - self._started, line)

    def _keep(self, number: int, typed: str, seconds: float, line: int = 0) -> None:
        name = f"In[{number}]"
        self.cells.append(EarlierCell(name, typed, seconds, line, self._read))
        del self.cells[:-MAX_CELLS]

    def _read(self, typed: str) -> str:
        """Return a cell as Python, at its lines; "" where other code runs its body."""
        lines = typed.split("\n")
        n_above = 0
        for line in lines:
            if line.strip() and not line.startswith("%%"):
                break
            if line.startswith("%%") and line.split()[0] not in TRANSPARENT:
                return ""
            n_above += 1
        body: str = self._shell.transform_cell("\n".join(lines[n_above:]))
        return "\n" * n_above + body


def find_line(error: BaseException) -> int:
    """Return the line of a cell that raised; 0 if it is not known."""
    lines = [
        line
        for frame, line in walk_tb(error.__traceback__)
        if frame.f_code.co_name == "<module>"
        and not Path(frame.f_code.co_filename).is_file()
    ]
    return lines[-1] if lines else 0
