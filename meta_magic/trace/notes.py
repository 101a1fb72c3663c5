"""What is told of a recording besides its calls: notes, and the cell as written."""

from dataclasses import dataclass, field
from typing import Final

FAILS: Final = "fails"
"""The kind of notes on what would raise an error on the device that the code names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CellSource:
    """A cell as it was written.

    Attributes:
        text: What stands below the magic's line; "" outside of IPython.
        file: File name under which it ran; not compared.
        first_line: Line of the whole cell at which the text begins, from 1.
        head: What stands before it: the line of the magic; not compared.
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
