"""The records of a check: its requests and their results.

They are pickled between the child and the parent process, which reads them without
torch. Read :class:`Request` and :class:`Verdict` first.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

from meta_magic.errors import CheckError
from meta_magic.trace.expectations import CHECK_SECONDS, Limit

if TYPE_CHECKING:
    from meta_magic.designs.design import Design

FileKind: TypeAlias = Literal["script", "notebook", "function"]
Outcome: TypeAlias = Literal["right", "error", "unchecked"]
Level: TypeAlias = Literal["error", "warning", "note"]

EXIT_CODES: Final[Mapping[Outcome, int]] = {"error": 1, "unchecked": 2, "right": 0}
"""By outcome, the worst first."""

EMPTY: Final = "uninitialized"
OTHERWISE: Final = "initialized otherwise"
"""The rules of ``--init``."""

GRACE: Final = 10.0
"""Seconds that a child has at least after an interrupt."""

UNRUN: Final = "unrun"
"""The rule of a diagnostic about code that did not run, and so was not checked."""

FUNCTION: Final = re.compile(r"(?P<home>.+):(?P<function>[^\W\d]\w*(\.[^\W\d]\w*)*)")
MODULE: Final = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """A script, a notebook or a function that is checked.

    Attributes:
        name: As the command line has it.
        kind: Which of the three.
        path: Absolute path of its file; None for a function of an imported module.
        module: Name of that module; "" for all others.
        function: Qualified name of the function; "" for all others.
    """

    name: str
    kind: FileKind
    path: Path | None = None
    module: str = ""
    function: str = ""


def read_subject(text: str) -> Subject:
    """Return the subject that an argument of the command line names.

    Args:
        text: The path of a script or notebook, ``pkg.module:function``, or
            ``path/to/file.py:function``.

    Raises:
        CheckError: It is none of these, or does not exist.
    """
    path = Path(text)
    if path.is_file():
        kind: FileKind = "notebook" if path.suffix == ".ipynb" else "script"
        return Subject(name=text, kind=kind, path=path.resolve())
    if path.is_dir():
        raise CheckError("it is a folder; name scripts, notebooks or functions")
    found = FUNCTION.fullmatch(text)
    if found is None:
        raise CheckError(
            "there is no such file; a function is named as pkg.module:function"
        )
    home, function = Path(found["home"]), found["function"]
    if home.is_file():
        file = home.resolve()
        return Subject(name=text, kind="function", path=file, function=function)
    if not MODULE.fullmatch(found["home"]):
        raise CheckError(f"there is no file {found['home']!r}")
    return Subject(name=text, kind="function", module=found["home"], function=function)


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What a child process is asked to do.

    Attributes:
        subject: What it runs.
        argv: Arguments of a script.
        arguments: Of a function, as JSON: a list, or an object of keywords.
        factory: Names the function that returns them, ``pkg.module:function``; "" for
            none.
        settings: Of the recording, by the names of ``%%meta``'s options.
        limits: The budget of a recording.
        seconds: The time limit of the whole check.
        nbytes: The limit of this machine's memory; None for no limit.
        is_sandboxed: Whether writing files, network and processes are refused.
        depth: Levels of modules that the summary shows; None for all.
        has_page: Whether the HTML report is wanted, too.
        checks_contents: Whether uninitialized parameters and buffers are errors.
        has_design: Whether the design is wanted, too.
        choices: Sets of changes, as of ``trace.fit``; of each the peak is wanted, too.
    """

    subject: Subject
    argv: tuple[str, ...] = ()
    arguments: str = "[]"
    factory: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict)
    limits: tuple[Limit, ...] = ()
    seconds: float = CHECK_SECONDS
    nbytes: int | None = None
    is_sandboxed: bool = False
    depth: int | None = 1
    has_page: bool = False
    checks_contents: bool = False
    has_design: bool = False
    choices: tuple[tuple[str, ...], ...] = ()

    @property
    def grace(self) -> float:
        """The seconds that a child has after an interrupt to send its results."""
        return max(GRACE, self.seconds / 3)


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnostic:
    """One result of a check, as linters report it.

    Attributes:
        rule: Its short name: ``error``, ``unchecked``, ``budget``, ``changed``,
            ``unrun``, or the kind of a note.
        level: How bad it is.
        text: The message.
        file: Absolute path; None if it is not known.
        line: Line of that file; None as well.
    """

    rule: str
    level: Level
    text: str
    file: str | None = None
    line: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockResult:
    """The results of one recording: of a script, a function, or a cell.

    Attributes:
        name: ``cell 3``; "" for a script or a function.
        outcome: Its result.
        file: Absolute path of the recorded file; None if nothing was recorded.
        summary: The recording as text; "" where nothing was recorded.
        traceback: Where the user's code raised the error, as Python writes it.
        explanation: Why it failed; "" where that is not known.
        diagnostics: Sorted, the worst first.
        measured: The quantities of the recording, by the names of a budget.
        seconds: How long it took.
        page: The HTML report; "" if it was not asked for.
        peaks: By the choices that were asked for, the bytes at the peak of the device
            that needs most, or why the block does not run with them.
        design: What the recording builds and costs; None if it was not asked for.
    """

    name: str = ""
    outcome: Outcome
    file: str | None = None
    summary: str = ""
    traceback: str = ""
    explanation: str = ""
    diagnostics: tuple[Diagnostic, ...] = ()
    measured: Mapping[str, int] = field(default_factory=dict)
    seconds: float = 0.0
    page: str = field(default="", repr=False)
    peaks: Mapping[tuple[str, ...], int | str] = field(default_factory=dict)
    design: "Design | None" = field(default=None, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The results of one subject.

    Attributes:
        name: The subject, as the command line has it.
        parts: Its recordings, in their order.
        output: The last lines that it printed.
        seconds: How long the child process took.
    """

    name: str
    parts: tuple[BlockResult, ...]
    output: str = ""
    seconds: float = 0.0

    @property
    def outcome(self) -> Outcome:
        """The worst outcome of its parts."""
        return worst_of(part.outcome for part in self.parts)


def make_unchecked(reason: str) -> BlockResult:
    """Return the part of a subject that cannot be checked."""
    diagnostic = Diagnostic(rule="unchecked", level="warning", text=reason)
    return BlockResult(outcome="unchecked", diagnostics=(diagnostic,))


def worst_of(outcomes: Iterable[Outcome]) -> Outcome:
    """Return the worst of some outcomes; ``right`` if there are none."""
    found = {*outcomes}
    return next((outcome for outcome in EXIT_CODES if outcome in found), "right")


def pick_exit_code(verdicts: Iterable[Verdict]) -> int:
    """Return 0 if all is right, 1 for an error, 2 if something cannot be checked."""
    return EXIT_CODES[worst_of(verdict.outcome for verdict in verdicts)]
