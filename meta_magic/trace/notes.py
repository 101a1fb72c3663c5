"""What a trace has besides its calls: notes for the user, and the cell's source."""

import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final, Literal, TypeAlias

Severity: TypeAlias = Literal["certain", "likely", "asked for"]
"""How sure a note is; likely ones are there where they are asked for."""

FAILS: Final = "fails"
"""The kind of notes on calls that would raise on the device that the code names."""

MISTAKES: Final = frozenset({"attribute", "unregistered", "untied"})
"""Kinds of notes on mistakes that only the live modules show."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CellSource:
    """A cell as it was written.

    Attributes:
        text: The cell below the line of the magic; "" outside of IPython.
        file: File name under which it ran; not compared.
        first_line: Line of the whole cell at which the text begins, from 1.
        head: The text before it, the line of the magic; not compared.
    """

    text: str = ""
    file: str = field(default="", compare=False)
    first_line: int = 1
    head: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """Something that the user should know about the recording.

    Attributes:
        kind: Short name of the rule, such as ``broadcast``.
        text: One line, without the line number.
        line: Line of the cell, or None.
        severity: How sure it is.
        lines: Other lines of the cell that belong to it, in order: where a module was
            built, or an operand made.
        why: The evidence, one line; "" where the text says it all.
        repair: A line after an edit with which the note was gone; "" for none.

    Example:
        >>> with record() as trace:
        ...     n = torch.ones(3).sum().item()
        >>> trace.notes[0].kind
        'evaluated'
    """

    kind: str
    text: str
    line: int | None
    severity: Severity = "certain"
    lines: tuple[int, ...] = ()
    why: str = ""
    repair: str = ""

    @property
    def evidence(self) -> str:
        """Why it is noted, and what was tried."""
        tried = self.repair and f"the note is gone with {self.repair}"
        return "; ".join(filter(None, (self.why, tried)))


def sort_notes(notes: Iterable[Note]) -> tuple[Note, ...]:
    """Return notes in order of line, those without one last."""
    last = sys.maxsize
    return tuple(sorted(notes, key=lambda n: last if n.line is None else n.line))
