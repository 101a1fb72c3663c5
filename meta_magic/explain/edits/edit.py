"""An edit of a program: stretches of its lines, and what is to stand there.

No edit makes lines, or takes some away: what a line is called stays.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, NamedTuple

__all__ = ["Edit", "Stretch", "apply_edit", "join_edits", "sort_edits"]

MAX_EDITS: Final = 80


class Stretch(NamedTuple):
    """A stretch of a line, and what is to stand there.

    Attributes:
        line: The line, from 1.
        column: Where it begins, in UTF-8 bytes from 0.
        end_column: Where it ends.
        text: What is to stand there.
    """

    line: int
    column: int
    end_column: int
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Edit:
    """Stretches of a program that are replaced together.

    Attributes:
        stretches: They do not overlap.
        cost: How unlikely it is to be what was meant; 0 to 4 or so.
        is_solved: Whether the call accepts what comes of it, as far as is known: it is
            tried before others that are meant as likely.
    """

    stretches: tuple[Stretch, ...]
    cost: float
    is_solved: bool = False

    @property
    def lines(self) -> tuple[int, ...]:
        """The lines that are changed, in order."""
        return tuple(sorted({stretch.line for stretch in self.stretches}))


def apply_edit(source: str, edit: Edit, first_line: int = 1) -> str:
    """Return a source with an edit made.

    Args:
        source: It.
        edit: The edit.
        first_line: The number that the edit has for the first line of the source.
    """
    lines = [line.encode() for line in source.split("\n")]
    for line, column, end, text in sorted(edit.stretches, reverse=True):
        old = lines[line - first_line]
        lines[line - first_line] = old[:column] + text.encode() + old[end:]
    return b"\n".join(lines).decode()


def join_edits(edits: Iterable[Edit], cost: float) -> Edit:
    """Return the edit that makes several at once."""
    stretches = (stretch for edit in edits for stretch in edit.stretches)
    return Edit(stretches=tuple(dict.fromkeys(stretches)), cost=cost)


def sort_edits(edits: Iterable[Edit]) -> list[Edit]:
    """Return edits, the likeliest first, none twice."""
    best: dict[object, Edit] = {}
    for edit in edits:
        known = best.get(frozenset(edit.stretches))
        if edit.stretches and (known is None or edit.cost < known.cost):
            best[frozenset(edit.stretches)] = edit
    return sorted(best.values(), key=lambda edit: edit.cost)[:MAX_EDITS]
