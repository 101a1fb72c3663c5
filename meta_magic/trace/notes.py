"""What a trace has besides its calls: notes for the user, and the cell's source."""

from dataclasses import dataclass, field
from typing import Final

FAILS: Final = "fails"
"""The kind of notes on calls that would raise on the device that the code names."""


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

    Example:
        >>> with record() as trace:
        ...     n = torch.ones(3).sum().item()
        >>> trace.notes[0].kind
        'evaluated'
    """

    kind: str
    text: str
    line: int | None
