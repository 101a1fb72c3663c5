"""What was found: records that the process of the command reads without torch."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeAlias

from meta_magic.check.subjects import Subject
from meta_magic.trace.expectations import Limit

__all__ = [
    "UNRUN",
    "Finding",
    "Level",
    "Outcome",
    "Part",
    "Request",
    "Verdict",
    "pick_exit_code",
    "worst_of",
]

Outcome: TypeAlias = Literal["right", "error", "unchecked"]
Level: TypeAlias = Literal["error", "warning", "note"]

EXIT_CODES: Final[Mapping[Outcome, int]] = {"error": 1, "unchecked": 2, "right": 0}
"""By outcome, the worst first."""


UNRUN: Final = "unrun"
"""The rule of findings on what was not checked, as it did not run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What a child is asked to do.

    Attributes:
        subject: What it runs.
        argv: Arguments of a script.
        arguments: Of a function, as JSON: a list, or an object of keywords.
        factory: Names the function that returns them, ``pkg.module:function``; "" for
            none.
        settings: Of the recording, by the names of ``%%meta``'s options.
        limits: What a recording may take.
        seconds: How long all may take.
        nbytes: What it may take of this machine's memory; None for all of it.
        is_sandboxed: Whether files, network and processes are refused.
        depth: Levels of modules that the summary shows; None for all.
        has_page: Whether the report is wanted, too.
    """

    subject: Subject
    argv: tuple[str, ...] = ()
    arguments: str = "[]"
    factory: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict)
    limits: tuple[Limit, ...] = ()
    seconds: float = 300.0
    nbytes: int | None = None
    is_sandboxed: bool = False
    depth: int | None = 1
    has_page: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that was found.

    Attributes:
        rule: Its short name: ``error``, ``unchecked``, ``budget``, ``changed``,
            ``unrun``, or the kind of a note.
        level: How bad it is.
        text: What it is, in words.
        file: Where it is, in full; None if that is not known.
        line: Line of that file; None as well.
    """

    rule: str
    level: Level
    text: str
    file: str | None = None
    line: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One recording: of a script, a function, or a cell.

    Attributes:
        name: ``cell 3``; "" for what has no parts.
        outcome: What came of it.
        file: Of what was recorded, in full; None if nothing was.
        summary: The recording in words; "" where nothing was recorded.
        traceback: Where the error came up in the user's code, as Python writes it.
        explanation: Why it failed; "" where nobody can say.
        findings: What was found, the worst first.
        measured: What it takes, by the names of a budget.
        modules: Of each module its class, parameters, and what its first call read and
            returned.
        seconds: How long it took.
        page: The report; "" if nobody asked for it.
    """

    name: str = ""
    outcome: Outcome
    file: str | None = None
    summary: str = ""
    traceback: str = ""
    explanation: str = ""
    findings: tuple[Finding, ...] = ()
    measured: Mapping[str, int] = field(default_factory=dict)
    modules: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    seconds: float = 0.0
    page: str = field(default="", repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What came of one subject.

    Attributes:
        name: The subject, as the command line has it.
        parts: Its recordings, in their order.
        output: The last lines that it printed.
        seconds: How long the child took.
    """

    name: str
    parts: tuple[Part, ...]
    output: str = ""
    seconds: float = 0.0

    @property
    def outcome(self) -> Outcome:
        """What came of it, which is the worst that came of its parts."""
        return worst_of(part.outcome for part in self.parts)


def worst_of(outcomes: Iterable[Outcome]) -> Outcome:
    """Return the worst of some outcomes; ``right`` if there are none."""
    met = {*outcomes}
    return next((outcome for outcome in EXIT_CODES if outcome in met), "right")


def pick_exit_code(verdicts: Iterable[Verdict]) -> int:
    """Return 0 if all is right, 1 for an error, 2 if something cannot be checked."""
    return EXIT_CODES[worst_of(verdict.outcome for verdict in verdicts)]
