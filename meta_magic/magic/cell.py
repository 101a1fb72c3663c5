"""Compile a cell's body as IPython would, under the file name of the whole cell.

IPython's ``run_cell`` cannot run the body: a failing cell would succeed, its value be
lost, and its line numbers be wrong. Blank lines replace ``%%meta``, so that tracebacks,
breakpoints and ``inspect.getsource`` see the cell as it was typed.
"""

import ast
import inspect
import linecache
import sys
from contextlib import AbstractContextManager, nullcontext
from traceback import walk_stack
from types import CodeType
from typing import Any, Final

from meta_magic.magic.timed_lines import (
    Timer,
    TimeStatements,
    blank_magic,
    inline_timed,
)

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
        from meta_magic.trace.rerun import list_names  # noqa: PLC0415  needs torch

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
