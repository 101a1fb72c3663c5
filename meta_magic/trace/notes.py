"""What a trace has besides its calls: notes, the cell's source, and earlier cells.

Nothing here imports torch: cells are kept before torch is imported.
"""

import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Final, Literal, NamedTuple, TypeAlias

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


class EarlierCell(NamedTuple):
    """A cell that ran before a block.

    Attributes:
        name: What messages call it: ``In[2]``.
        typed: The cell as the user typed it, with the lines of its magics.
        failed_line: The line of its statement that raised; 0 if none did.
        read: Returns ``typed`` as Python, at the same lines.
    """

    name: str
    typed: str
    seconds: float = 0.0
    failed_line: int = 0
    read: Callable[[str], str] = str


def find_shell() -> Any:
    """Return IPython's shell, or None outside of IPython."""
    return getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()


def count_cells() -> tuple[int, int]:
    """Return how many cells have begun in this process, and how many have ended."""
    shell = find_shell()
    history = getattr(shell, "history_manager", None)
    begun = len(getattr(history, "input_hist_parsed", ()))
    return begun, getattr(shell, "execution_count", 0)


def name_cell(file: str) -> str:
    """Return ``In[2]`` for the file name of a cell; "" for other files."""
    compiler = getattr(find_shell(), "compile", None)
    # absent in IPython 7
    number = getattr(compiler, "_filename_map", {}).get(file)
    return "" if number is None else f"In[{number}]"
