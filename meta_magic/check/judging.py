"""Say what came of a recording: right, an error of it, or nothing that is known."""

import traceback
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, TypeAlias

from meta_magic.check.lacking import describe_error
from meta_magic.check.module_shapes import describe_modules
from meta_magic.check.reasons import find_reason, is_of_ipython
from meta_magic.check.verdicts import UNRUN, Finding, Part, Request, worst_of
from meta_magic.errors import CheckError
from meta_magic.session.shown_frames import PYTHONS, USERS, choose_frames, home_of
from meta_magic.trace.expectations import find_overruns, measure
from meta_magic.trace.notes import FAILS
from meta_magic.trace.summary import format_summary

if TYPE_CHECKING:
    from meta_magic.check.verdicts import Level, Outcome
    from meta_magic.trace.trace import Trace

__all__ = ["Judge", "Locate", "judge_unread"]

Locate: TypeAlias = Callable[[str | None, int | None], tuple[str | None, int | None]]
"""Returns where a line of a recorded file stands, as file and line."""


def as_it_is(file: str | None, line: int | None) -> tuple[str | None, int | None]:
    """Return a place as it is."""
    return file, line


class Judge:
    """Makes a record of what came of a recording.

    Args:
        request: What was asked for.
        refused: What a sandbox refused so far, in words.
        locate: Where lines of the recorded file stand.
    """

    def __init__(
        self, request: Request, refused: Sequence[str] = (), locate: Locate = as_it_is
    ) -> None:
        self._request = request
        self._refused = refused
        self._locate = locate

    def judge(
        self, trace: "Trace", error: BaseException | None, name: str = ""
    ) -> Part:
        """Return what came of a recording that an error may have ended."""
        shown = [] if error is None else [*self._find_places(error, trace.cell.file)]
        reason = None if error is None else find_reason(error, self._request)
        if self._refused:
            reason = f"it {self._refused[0]} (--sandbox)"
        findings = (
            *self._find_end(error, reason, shown),
            *self._find_overruns(trace),
            *self._find_notes(trace),
            *([] if error or name else find_unrun(trace)),  # many cells only import
        )
        outcomes: list[Outcome] = [
            "unchecked" if found.rule == "unchecked" else "error"
            for found in findings
            if found.level != "note"
        ]
        has_failed = error is not None and reason is None
        return Part(
            name=name,
            outcome=worst_of(outcomes),
            file=self._locate(trace.cell.file, None)[0],
            summary=summarize(trace, self._request.depth),
            traceback=format_error(error, trace.cell.file, name),
            explanation=explain(trace) if has_failed else "",
            findings=findings,
            measured=measure(trace),
            modules=describe_modules(trace),
            seconds=trace.seconds,
            page=render(trace) if self._request.has_page else "",
        )

    def _find_places(
        self, error: BaseException, file: str
    ) -> Iterator[tuple[str | None, int | None]]:
        """Yield the user's places on the way to an error, outermost first."""
        for entry in find_entries(error, file):
            own = entry.tb_frame.f_code.co_filename
            if home_of(own) == USERS:
                yield self._locate(own, entry.tb_lineno)
        if isinstance(error, SyntaxError) and error.filename:
            yield self._locate(error.filename, error.lineno)

    def _find_end(
        self,
        error: BaseException | None,
        reason: str | None,
        places: Sequence[tuple[str | None, int | None]],
    ) -> Iterator[Finding]:
        """Yield what ended a recording, if it is no success."""
        file, line = places[-1] if places else (None, None)
        if reason is not None:
            rule, level, text = "unchecked", "warning", reason
        elif error is not None:
            rule, level, text = "error", "error", describe_error(error)
        else:
            return
        yield Finding(rule=rule, level=level, text=text, file=file, line=line)  # type: ignore[arg-type]

    def _find_overruns(self, trace: "Trace") -> Iterator[Finding]:
        file, line = self._locate(trace.cell.file, None)
        for overrun in find_overruns(trace, self._request.limits):
            yield Finding(
                rule="budget", level="error", text=str(overrun), file=file, line=line
            )

    def _find_notes(self, trace: "Trace") -> Iterator[Finding]:
        for note in trace.notes:
            file, line = self._locate(trace.cell.file, note.line)
            level: Level = "error" if note.kind == FAILS else "note"
            yield Finding(
                rule=note.kind, level=level, text=note.text, file=file, line=line
            )


def find_unrun(trace: "Trace") -> Iterator[Finding]:
    """Yield what of a recording that is right was not checked."""
    if trace.modules and not trace.module_calls:
        text = "no module was called: what it would do with data is not checked"
    elif not (trace.modules or len(trace.ops)):
        text = "nothing of torch was called: nothing is checked"
    else:
        return
    yield Finding(rule=UNRUN, level="note", text=text)


def render(trace: "Trace") -> str:
    """Return the report as a whole HTML file."""
    from meta_magic.view.page import render_page  # noqa: PLC0415  few ask for it

    return render_page(trace)


def judge_unread(
    error: BaseException, file: str, line: int | None = None, name: str = ""
) -> Part:
    """Return what came of code that did not begin to run."""
    if isinstance(error, SyntaxError):
        line = error.lineno if line is None else line
    is_usage = is_of_ipython(error)
    finding = Finding(
        rule="unchecked" if is_usage else "error",
        level="warning" if is_usage else "error",
        text=describe_error(error),
        file=file,
        line=line,
    )
    return Part(
        name=name,
        outcome="unchecked" if is_usage else "error",
        traceback="".join(traceback.format_exception_only(error)),
        findings=(finding,),
    )


def summarize(trace: "Trace", depth: int | None) -> str:
    """Return a recording in words; "" where nothing was recorded."""
    is_empty = not (len(trace.ops) or trace.modules or trace.notes)
    return "" if is_empty else format_summary(trace, depth)


def explain(trace: "Trace") -> str:
    """Return why a recording failed; "" where the error alone says so."""
    explanation = trace.explanation
    is_bare = explanation is None or not (explanation.given or explanation.rules)
    return "" if is_bare or explanation is None else explanation.text


def format_error(error: BaseException | None, file: str, name: str) -> str:
    """Return the frames that the user wants to see, and the error, as Python does.

    "" for what is no fault in a line.

    Args:
        error: The error, if there is one.
        file: What was recorded; the frames begin there.
        name: The cell that it is, "" if it is none.
    """
    if error is None or isinstance(error, (SystemExit, CheckError)):
        return ""
    frames = ((one.tb_frame, one.tb_lineno) for one in find_entries(error, file))
    lines = traceback.StackSummary.extract(frames).format()
    text = "".join([*lines, *traceback.format_exception_only(error)])
    return text.replace(file, name) if name else text


def find_entries(error: BaseException, file: str) -> list[TracebackType]:
    """Return what is shown of an error's traceback, from the recorded file on."""
    entries = [
        entry
        for entry in choose_frames(error, error.__traceback__).entries
        if home_of(entry.tb_frame.f_code.co_filename) != PYTHONS
    ]
    names = [entry.tb_frame.f_code.co_filename for entry in entries]
    return entries[names.index(file) if file in names else 0 :]
