"""Judge a recording: its outcome, diagnostics and numbers.

A missing package, a missing file or too little memory says nothing about the program:
:func:`find_outside_reason` then says why the error is not the program's own, and the
outcome is ``unchecked``. Read :meth:`Judge.judge` first.
"""

import importlib.util
import linecache
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Final, TypeAlias

from meta_magic.check.records import (
    EMPTY,
    OTHERWISE,
    UNRUN,
    BlockResult,
    Diagnostic,
    Request,
    worst_of,
)
from meta_magic.errors import CheckError, MetaMagicError, WorldError
from meta_magic.session.raised_calls import PYTHONS, USERS, choose_frames, home_of
from meta_magic.trace.expectations import find_overruns, measure
from meta_magic.trace.modules import at_any_depth
from meta_magic.trace.notes import FAILS, name_cell
from meta_magic.trace.units import format_bytes
from meta_magic.trials.sandbox import Refused

if TYPE_CHECKING:
    from meta_magic.check.records import Level, Outcome
    from meta_magic.trace.trace import Trace


Locate: TypeAlias = Callable[[str | None, int | None], tuple[str | None, int | None]]
"""Returns the file and line to report, given those of the recording."""


def measure_peaks(
    trace: "Trace", choices: Sequence[tuple[str, ...]]
) -> dict[tuple[str, ...], int | str]:
    """Return the bytes at the peak with each set of choices, or why it does not run."""
    if not choices:
        return {}
    from meta_magic.errors import TrialError  # noqa: PLC0415  few ask for it
    from meta_magic.trials.fit import Recordings  # noqa: PLC0415

    recordings, peaks = Recordings(trace), dict[tuple[str, ...], int | str]()
    for one in choices:
        try:
            peaks[one] = recordings.take(one).peak_nbytes
        except TrialError as error:
            peaks[one] = str(error)
    return peaks


@dataclass(frozen=True, slots=True)
class Judge:
    """Makes the results of recordings.

    Args:
        request: What was asked for.
        refused: Descriptions of what the sandbox refused so far.
        locate: Returns the file and line to report.
    """

    request: Request
    refused: Sequence[str] = ()
    locate: Locate = lambda file, line: (file, line)

    def judge(
        self, trace: "Trace", error: BaseException | None, name: str = ""
    ) -> BlockResult:
        """Return the results of a recording; ``error`` ended it, or is None."""
        sites = [] if error is None else [*self._find_sites(error, trace.cell.file)]
        reason = None if error is None else find_outside_reason(error, self.request)
        if self.refused:
            reason = f"it {self.refused[0]} (--sandbox)"
        diagnostics = (
            *self._describe_end(error, reason, sites),
            *self._find_overruns(trace),
            *self._find_notes(trace),
            *(self._find_empty(trace) if self.request.checks_contents else ()),
            *([] if error or name else find_unrun(trace)),  # many cells only import
        )
        outcomes: list[Outcome] = [
            "unchecked" if found.rule == "unchecked" else "error"
            for found in diagnostics
            if found.level != "note"
        ]
        is_hang = isinstance(error, WorldError) and error.is_hang
        has_failed = error is not None and reason is None and not is_hang
        page = ""
        if self.request.has_page:
            from meta_magic.view.page import render_page  # noqa: PLC0415  few ask for it

            page = render_page(trace)
        design = None
        if self.request.has_design:
            from meta_magic.designs.design import read_design  # noqa: PLC0415  as well

            design = at_any_depth(read_design)(trace)
        return BlockResult(
            name=name,
            outcome=worst_of(outcomes),
            file=self.locate(trace.cell.file, None)[0],
            summary="" if trace.is_empty else trace.summary(self.request.depth),
            traceback=format_error(error, trace.cell.file, name),
            explanation=explain(trace) if has_failed else "",
            diagnostics=diagnostics,
            measured=measure(trace),
            seconds=trace.seconds,
            page=page,
            design=design,
            peaks={} if error else measure_peaks(trace, self.request.choices),
        )

    def _find_sites(
        self, error: BaseException, file: str
    ) -> Iterator[tuple[str | None, int | None]]:
        """Yield the user's lines of a traceback, outermost first."""
        for entry in find_entries(error, file):
            own = entry.tb_frame.f_code.co_filename
            if home_of(own) == USERS:
                yield self.locate(own, entry.tb_lineno)
        if isinstance(error, SyntaxError) and error.filename:
            yield self.locate(error.filename, error.lineno)

    def _describe_end(
        self,
        error: BaseException | None,
        reason: str | None,
        sites: Sequence[tuple[str | None, int | None]],
    ) -> Iterator[Diagnostic]:
        file, line = sites[-1] if sites else (None, None)
        if reason is not None:
            rule, level, text = "unchecked", "warning", reason
        elif error is not None:
            rule, level, text = "error", "error", describe_error(error)
        else:
            return
        yield Diagnostic(rule=rule, level=level, text=text, file=file, line=line)  # type: ignore[arg-type]

    def _find_overruns(self, trace: "Trace") -> Iterator[Diagnostic]:
        file, line = self.locate(trace.cell.file, None)
        for overrun in find_overruns(trace, self.request.limits):
            yield Diagnostic(
                rule="budget", level="error", text=str(overrun), file=file, line=line
            )

    def _find_notes(self, trace: "Trace") -> Iterator[Diagnostic]:
        for note in trace.notes:
            file, line = self.locate(trace.cell.file, note.line)
            level: Level = "error" if note.kind == FAILS else "note"
            text = "; the note is gone with ".join(
                filter(None, (note.text, note.repair))
            )
            yield Diagnostic(
                rule=note.kind, level=level, text=text, file=file, line=line
            )

    def _find_empty(self, trace: "Trace") -> Iterator[Diagnostic]:
        if not trace.modules:
            text = "no module was built: --init has nothing to check"
            yield Diagnostic(rule="unchecked", level="warning", text=text)
        for one in trace.contents:
            if one.is_empty or one.is_other:
                file, line = self.locate(trace.cell.file, one.contents.line)
                yield Diagnostic(
                    rule=EMPTY if one.is_empty else OTHERWISE,
                    level="error" if one.is_empty else "note",
                    text=str(one),
                    file=file,
                    line=line,
                )


def find_unrun(trace: "Trace") -> Iterator[Diagnostic]:
    """Yield which parts of a successful recording did not run."""
    if trace.modules and not trace.module_calls:
        text = "no module was called: what it computes is not checked"
    elif not (trace.modules or len(trace.ops)):
        text = "torch was not called: nothing is checked"
    else:
        return
    yield Diagnostic(rule=UNRUN, level="note", text=text)


def judge_unstarted(
    error: BaseException, file: str, line: int | None = None, name: str = ""
) -> BlockResult:
    """Return the results of code that did not begin to run."""
    if isinstance(error, SyntaxError):
        line = error.lineno if line is None else line
    is_usage = is_of_ipython(error)
    diagnostic = Diagnostic(
        rule="unchecked" if is_usage else "error",
        level="warning" if is_usage else "error",
        text=describe_error(error),
        file=file,
        line=line,
    )
    return BlockResult(
        name=name,
        outcome="unchecked" if is_usage else "error",
        traceback="".join(traceback.format_exception_only(error)),
        diagnostics=(diagnostic,),
    )


def explain(trace: "Trace") -> str:
    """Return why a recording failed; "" where nothing is known besides the error.

    The errors that follow when the first edits are made are explained as well.
    """
    explanation = trace.explanation
    if explanation is None or explanation.is_silent:
        return ""
    from meta_magic.explain.across_cells import explain_later  # noqa: PLC0415  few fail

    later = (
        f"\nwith the first edit: {one}" for one in explain_later(trace, explanation)
    )
    return "\n".join((explanation.text, *later))


def format_error(error: BaseException | None, file: str, name: str) -> str:
    """Return the user's frames and the error, as Python writes them.

    "" for an error that has no line in the user's code.

    Args:
        error: The error, if there is one.
        file: The recorded file; the frames begin there.
        name: The name of the cell; "" for a script or a function.
    """
    if error is None or isinstance(error, (SystemExit, CheckError)):
        return ""
    frames = ((one.tb_frame, one.tb_lineno) for one in find_entries(error, file))
    summary = traceback.StackSummary.extract(frames)
    text = "".join([*summary.format(), *traceback.format_exception_only(error)])
    for cell in {frame.filename for frame in summary}:
        text = text.replace(
            cell, (name if cell == file else "") or name_cell(cell) or cell
        )
    return text


def find_entries(error: BaseException, file: str) -> list[TracebackType]:
    """Return the shown entries of a traceback, from the recorded file on."""
    entries = [
        entry
        for entry in choose_frames(error, error.__traceback__).entries
        if home_of(entry.tb_frame.f_code.co_filename) != PYTHONS
    ]
    names = [entry.tb_frame.f_code.co_filename for entry in entries]
    return entries[names.index(file) if file in names else 0 :]


USAGE: Final = 2
"""The exit code of programs whose arguments are wrong."""


def find_outside_reason(error: BaseException, request: Request) -> str | None:
    """Return why an error is not the program's own; None if it is."""
    if isinstance(error, WorldError) and error.is_hang:
        return None
    if isinstance(error, (MetaMagicError, Refused)) or is_of_ipython(error):
        return str(error)
    if isinstance(error, KeyboardInterrupt):
        is_all = request.settings.get("ranks") == "all"
        has_others = request.settings.get("world") is not None and not is_all
        return f"it took more than {request.seconds:g} s (--timeout)" + (
            "; it may wait for ranks that are not recorded (--ranks)" * has_others
        )
    if isinstance(error, ModuleNotFoundError):
        if not error.name and error.__cause__ is not None:  # as transformers raises it
            return find_outside_reason(error.__cause__, request)
        return find_missing_package(error.name)
    return find_expected_input(error) or find_lacking_resource(error, request.nbytes)


def find_missing_package(name: str | None) -> str | None:
    """Return which package is not installed; None if the package is there."""
    package = (name or "").partition(".")[0]
    try:
        is_here = not package or importlib.util.find_spec(package) is not None
    except ValueError:  # it is half imported
        is_here = True
    return None if is_here else f"it needs {package!r}, which is not installed"


def find_expected_input(error: BaseException) -> str | None:
    """Return what a program expects of its user: arguments or input."""
    if isinstance(error, SystemExit) and error.code == USAGE:
        return "it does not take its arguments (exit code 2); give others after --"
    if isinstance(error, IndexError) and is_of_arguments(error):
        return f"it needs arguments; give them after -- ({error})"
    if isinstance(error, EOFError):
        return f"it asks for input, and here is none: {error}"
    return None


def is_of_arguments(error: IndexError) -> bool:
    """Whether the line that raised reads ``sys.argv``."""
    last = error.__traceback__
    while last is not None and last.tb_next is not None:
        last = last.tb_next
    if last is None:
        return False
    line = linecache.getline(last.tb_frame.f_code.co_filename, last.tb_lineno)
    return "argv" in line


def is_of_ipython(error: BaseException) -> bool:
    """Whether IPython reports an unknown magic, or wrong use of one."""
    return type(error).__name__ == "UsageError"


LACKING: Final = ("NVIDIA driver", "not compiled with CUDA enabled")
NO_MEMORY: Final = ("can't allocate memory", "failed to map segment", "Cannot allocate")
"""Messages of torch, and of libraries in C, that blame the machine."""


def describe_error(error: BaseException) -> str:
    """Return an error's type and text."""
    if isinstance(error, SystemExit):
        return f"it ended with exit code {error.code!r}"
    text = str(error)
    name = type(error).__name__
    return f"{name}: {text}" if text else name


def find_lacking_resource(error: BaseException, nbytes: int | None) -> str | None:
    """Return what this machine, or the meta device, lacks; None if nothing."""
    text = str(error)
    is_full = isinstance(error, MemoryError)
    if is_full or any(message in text for message in NO_MEMORY):
        limit = "" if nbytes is None else f" than {format_bytes(nbytes)} (--memory)"
        return f"it needs more memory{limit}: {describe_error(error)}"
    is_of_meta = isinstance(error, NotImplementedError) and "meta" in text.lower()
    is_of_machine = any(message in text for message in LACKING)
    if is_of_meta or is_of_machine or isinstance(error, OSError):
        return f"it needs what is not here: {describe_error(error)}"
    return None
