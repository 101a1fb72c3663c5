"""The magics ``%%meta`` and ``%meta``: read the line, run the cell, show the report.

Read :meth:`MetaMagics.meta` first; ``run`` does the work.
"""

import builtins
import re
import tokenize
from collections.abc import Callable
from functools import partial
from importlib.util import cache_from_source
from keyword import iskeyword
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from IPython.core.error import UsageError
from IPython.core.magic import Magics, cell_magic, magics_class, no_var_expand
from IPython.core.magic_arguments import parse_argstring
from traitlets import Bool, Float, Int

from meta_magic.magic.awaiting import CellParts
from meta_magic.magic.cell import Body, History
from meta_magic.magic.line_options import (
    LEADING,
    SMALLEST,
    VALUES_BY_NAME,
    line_cell_magic_with_options,
    output_can_be_silenced,
    suggest,
)
from meta_magic.magic.materialize_line import COMMAND, is_command, run_command
from meta_magic.magic.run import Run
from meta_magic.magic.tracebacks import WHOLE, show_whole

if TYPE_CHECKING:
    from meta_magic.magic.reports import FailedCell

HELP: Final = "help"
REPAIR: Final = "repair"
COMMANDS: Final = (COMMAND, WHOLE, REPAIR, HELP)
LINE: Final = re.compile(rf"\s*{REPAIR}(\s+(\d+))?(\s+--write)?\s*")


@magics_class
class MetaMagics(Magics):
    """Magics that run code on torch's meta device and record it."""

    quiet = Bool(
        default_value=False,
        help="Record, but show no report (as -q does for one cell).",
    ).tag(config=True)
    depth = Int(
        None,
        min=SMALLEST["depth"],
        allow_none=True,
        help="Levels of modules that are open at first, in every view and in the text; "
        "by default as many as can be read at once, and all of the text.",
    ).tag(config=True)
    height = Int(
        None,
        min=SMALLEST["height"],
        allow_none=True,
        help="Height of the report's views, in pixels; by default 420, and more where "
        "the flow needs it.",
    ).tag(config=True)
    value_nbytes = Int(
        None,
        min=SMALLEST["value_nbytes"],
        allow_none=True,
        help="Bytes that computing one value may take, as for item(); by default a "
        "quarter of the free memory.",
    ).tag(config=True)
    value_flops = Int(
        None,
        min=SMALLEST["value_flops"],
        allow_none=True,
        help="FLOPs that computing one value may take; by default no limit but "
        "value_seconds.",
    ).tag(config=True)
    value_seconds = Float(
        10.0,
        min=SMALLEST["value_seconds"],
        help="Seconds that computing one value may take; all values of a cell may take "
        "six times as long.",
    ).tag(config=True)
    parameters = Bool(
        default_value=False, help="Show parameters and constants in the flow, too."
    ).tag(config=True)

    def __init__(self, shell: Any) -> None:
        """Belong to ``shell``.

        Attributes:
            is_check: The option of recordings, which ``meta-magic check`` sets.
            running: File name by text of the cells that are running now.
            raw_cell: The newest cell as it was typed.
            is_recorded: Whether the newest cell, or a part of it, was recorded.
            history: The cells that ran before.
            failed: Failed recordings of the newest cell, shown below its traceback.
        """
        super().__init__(shell)
        self.is_recorded = False
        self.is_check = False
        self.running: dict[str, str] = {}
        self.raw_cell: str | None = None
        self.history = History(shell)
        self.failed: list[FailedCell] = []

    def note_cell(self, info: Any) -> None:
        """Store the cell that is about to run, as it was typed."""
        self.raw_cell = info.raw_cell
        self.is_recorded = False
        self.failed.clear()
        self.history.start()

    def end_cell(self, result: Any) -> None:
        """Keep a cell that ran; show recordings that failed, below its traceback."""
        self.history.end(result)
        while self.failed:
            self.failed.pop(0).end()

    @no_var_expand
    @output_can_be_silenced
    @line_cell_magic_with_options
    def meta(self, line: str, cell: str | None = None) -> object:
        """Run a cell on torch's meta device and record every tensor operator.

        Tensors of the cell have a shape, strides and a dtype, but no data, and take no
        memory. A device that the cell names is a plan, which the report shows (see
        `--named`). The cell runs in your namespace as any other cell, and its last
        expression is shown. `_meta` is the trace of the newest recording.

        Examples::

            %%meta -o trace
            model = torch.nn.Linear(3, 4)
            model(torch.randn(2, 3))

            %meta torch.ones(3, 4).sum(0)

            %meta materialize model --device cpu
            %meta help    # shows this help
            %meta full    # shows the newest traceback with all its frames
            %meta repair 1    # puts the first repair of the failed cell into a new cell
            %meta repair 1 --write    # writes a repair of an imported file
        """
        __tracebackhide__ = True
        command = find_command(self.shell, line) if cell is None else None
        if command is not None:
            return command()
        raw = self.raw_cell
        if cell is None:
            end = LEADING.match(line).end()  # type: ignore[union-attr]  # it may be 0
            line, cell, raw = line[:end], line[end:], None
        options = self._parse(line)
        if options.help:
            return print(self.meta.__doc__)  # noqa: T201  asked for
        if not cell.strip():
            self._show_newest()
            return None
        if options.exercise and not self._grade(options, cell):
            return None
        body = self._compile(cell, raw)
        if body.is_async:
            raise UsageError(
                "%%meta: a cell that awaits needs %%meta as its first line"
            )
        return self._run(options, body, cell)

    @no_var_expand
    @cell_magic
    def exercise(self, line: str, cell: str) -> None:
        """Define an exercise, and run the code that it gives; see ``class build``.

        Examples::

            %%exercise outer
            a, b = torch.arange(3), torch.arange(4)
            # sizes: N=5
            ### BEGIN SOLUTION
            x = a[:, None] + b
            ### END SOLUTION
        """
        from meta_magic.errors import ExerciseError  # noqa: PLC0415  needs torch
        from meta_magic.teach.exercises import exercise, read_cell  # noqa: PLC0415

        name = line.strip()
        if not name.isidentifier():
            raise UsageError("%%exercise needs a name, as in %%exercise outer")
        try:
            made = read_cell(name, cell)
            exercise(**made._asdict())
        except ExerciseError as error:
            raise UsageError(f"%%exercise: {error}") from None
        exec(made.given, self.shell.user_ns)  # type: ignore[union-attr]  # noqa: S102  the user's

    def _grade(self, options: Any, cell: str) -> bool:
        """Grade a cell as an answer; return whether it can run in the notebook, too."""
        from meta_magic.teach import exercises  # noqa: PLC0415  needs torch

        name = options.exercise
        exercises.answers[name] = cell
        if name not in exercises.exercises:
            hint = suggest(name, exercises.exercises, "", is_sure=False)
            way = "run its cell above, unless a hidden test grades it"
            print(f"{name} is not defined here{hint}: {way}")  # noqa: T201  asked for
            return True
        found = exercises.add_grade(name, cell)
        options.quiet = True
        if exercises.grade(name) == 1.0:
            print(f"✓ {name} is right")  # noqa: T201  as above
        return found.points > 0 and found.has_ended

    def _run(self, options: Any, body: Body, cell: str) -> object:
        """Run a compiled cell, and show its report."""
        __tracebackhide__ = True
        run = Run(self, options, body, cell)
        with run.interrupts:
            try:
                run.start()
                return run.recording.guard.run(body.run)
            except BaseException as error:
                run.fail(error)
                raise
            finally:
                run.finish()

    async def meta_async(self, line: str, cell: str) -> object:
        """Run a cell that awaits; the guard is entered for each step of it."""
        __tracebackhide__ = True
        options = self._parse(line)
        if options.help:
            print(self.meta.__doc__)  # noqa: T201  asked for
            return None
        body = self._compile(cell, self.raw_cell)
        run = Run(self, options, body, cell)
        with CellParts(run.recording.guard.run_part) as parts, run.interrupts:
            try:
                run.start()
                with parts.with_tasks():
                    return await parts.drive(body.run_async())
            except BaseException as error:
                run.fail(error)
                raise
            finally:
                run.finish()

    def _compile(self, cell: str, raw: str | None) -> Body:
        """Compile a body; that of a nested ``%%meta`` belongs to the same cell."""
        if raw is None:  # a statement of %meta: a message says more than a traceback
            try:
                return Body(self.shell, cell, None)
            except SyntaxError as error:
                word = cell.split(maxsplit=1)[0]
                hint = suggest(word, COMMANDS, f"%meta {HELP}", is_sure=False)
                text = f"%meta: SyntaxError: {error.msg}: {cell}{hint}"
                raise UsageError(text) from None
        return Body(self.shell, cell, raw, self.running.get(raw))

    def _parse(self, line: str) -> Any:
        options = read_line(self.meta, line)
        name = options.out
        if name is not None and (not name.isidentifier() or iskeyword(name)):
            raise UsageError(f"%%meta: -o needs a name, and {options.out!r} is none")
        options.is_check = self.is_check
        options.quiet = options.quiet or self.quiet
        options.parameters = options.parameters or self.parameters
        for setting, least in SMALLEST.items():
            value = getattr(options, setting)
            if value is None:
                setattr(options, setting, getattr(self, setting))
            elif value < least:
                name = setting.replace("_", "-")
                raise UsageError(f"%%meta: --{name} is at least {least}, not {value}")
        return options

    def _show_newest(self) -> None:
        shell: Any = self.shell
        newest = shell.user_ns.get("_meta")
        if newest is None:
            raise UsageError("%meta: nothing was recorded yet; see %meta --help")
        print(newest)  # noqa: T201  asked for
        if not len(newest):
            print(f"%meta {HELP} lists what there is")  # noqa: T201  as above


def find_command(shell: Any, line: str) -> Callable[[], object] | None:
    """Return the command of a line of ``%meta``; None if it is a statement."""
    if line.strip() == WHOLE:
        return partial(show_whole, shell)
    if line.strip() == HELP:
        return partial(print, MetaMagics.meta.__doc__)
    if is_repair(shell, line):
        return partial(put_repair, shell, line)
    if is_command(line):
        return partial(run_command, shell, line)
    word = line.strip()
    if word.isidentifier() and not {word} & {*shell.user_ns, *dir(builtins)}:
        hint = suggest(word, COMMANDS, f"%meta {HELP}", is_sure=False)
        if hint:
            raise UsageError(f"%meta: {word} is not defined{hint}")
    return None


def read_line(magic: Any, line: str) -> Any:
    """Return the options of a line; an unknown one raises, with the nearest known."""
    try:
        options = parse_argstring(magic, line)
    except UsageError as error:
        unknown = [w for w in line.split() if w.partition("=")[0] not in VALUES_BY_NAME]
        if "unrecognized" not in str(error) or not unknown:
            raise
        hint = suggest(unknown[0], VALUES_BY_NAME, "%meta --help")
        raise UsageError(f"%%meta: {error}{hint}") from None
    if options.check and options.statement[:1] and "=" in options.statement[0]:
        options.check = options.statement.pop(0)
    if options.statement:
        hint = suggest(options.statement[0], VALUES_BY_NAME, "%meta --help")
        raise UsageError(f"%%meta: unrecognized arguments: {line.strip()}{hint}")
    return options


def is_repair(shell: Any, line: str) -> bool:
    """Whether a line asks for a repair; ``repair`` may also be the user's variable."""
    found = LINE.fullmatch(line)
    is_sure = found is not None and bool(found[1] or found[3])
    return found is not None and (is_sure or REPAIR not in shell.user_ns)


def put_repair(shell: Any, line: str) -> object:
    """Put a repair of the newest cell into a new cell, for the user to read and run.

    A widget cannot insert a cell; the reply to an execution can, in each front end.
    """
    found = LINE.fullmatch(line)
    number = int(found[2]) if found and found[2] else 1
    trace = shell.user_ns.get("_meta")
    explanation = None if trace is None else trace.explanation
    if explanation is None:
        raise UsageError(f"%meta {REPAIR}: the newest cell did not fail")
    n_repairs = len(explanation.repairs)
    if not n_repairs:
        raise UsageError(f"%meta {REPAIR}: no repair of the newest cell was found")
    if not 1 <= number <= n_repairs:
        known = "only 1" if n_repairs == 1 else f"1 to {n_repairs}"
        raise UsageError(f"%meta {REPAIR} {number}: the repairs that ran are {known}")
    repair, head = explanation.repairs[number - 1], trace.cell.head
    if not repair.path:
        return shell.set_next_input(head + repair.source, replace=False)
    if not (found and found[3]):
        how = f"%meta {REPAIR} {number} --write changes the file"
        return print(f"{repair.cell}\n{repair.diff}\n{how}")  # noqa: T201  asked for
    write_file(repair)
    return shell.set_next_input(head + repair.again, replace=False)


def write_file(repair: Any) -> None:
    """Write a repair into its file, if that is as it was."""
    was = repair.source.split("\n")
    for line, before, _ in repair.own_changes:
        was[line - 1] = before
    try:
        with tokenize.open(repair.path) as file:
            encoding = file.encoding
        with Path(repair.path).open(encoding=encoding, newline="") as file:
            lines = file.read().split("\n")  # ends of lines stay as they are
        if "\n".join(lines).replace("\r\n", "\n").rstrip("\n") != "\n".join(was):
            raise UsageError(f"%meta {REPAIR}: {repair.cell} was changed meanwhile")
        for line, before, after in repair.own_changes:
            lines[line - 1] = lines[line - 1].replace(before, after)
        with Path(repair.path).open("w", encoding=encoding, newline="") as file:
            file.write("\n".join(lines))
        # Python would not compile a file anew of the same size and second.
        Path(cache_from_source(repair.path)).unlink(missing_ok=True)
    except (OSError, SyntaxError, UnicodeError) as error:
        raise UsageError(f"%meta {REPAIR}: {repair.cell}: {error}") from None
    print(f"{repair.cell} is changed")  # noqa: T201  asked for
