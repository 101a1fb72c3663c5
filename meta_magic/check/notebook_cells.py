"""The code cells of a notebook's file, and where their lines stand in it."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from meta_magic.errors import CheckError

__all__ = ["Cell", "read_cells"]

MAY_RAISE: Final = "raises-exception"
"""The tag of a cell that is to fail, as ``nbclient`` knows it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One code cell.

    Attributes:
        number: Among the code cells, from 1.
        text: What is in it.
        lines: For each of its lines the line of the file; None where that is not told.
        may_raise: Whether an error of it is expected.
    """

    number: int
    text: str
    lines: tuple[int | None, ...]
    may_raise: bool = False

    def find_line(self, line: int | None) -> int | None:
        """Return the line of the file for a line of the cell, from 1."""
        if line is None:
            return next(iter(self.lines), None)
        return self.lines[line - 1] if 0 < line <= len(self.lines) else None


def read_cells(path: Path) -> tuple[Cell, ...]:
    """Return the code cells of a notebook.

    Raises:
        CheckError: It is none, or its kernel is not Python's.
    """
    try:
        text = path.read_text(encoding="utf-8")
        notebook = json.loads(text)
        found = list(find_cells(notebook))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        kind = type(error).__name__
        raise CheckError(
            f"it is no notebook that can be read ({kind}: {error})"
        ) from None
    language = find_language(notebook)
    if language != "python":
        raise CheckError(f"its kernel runs {language!r}, not Python")
    lines = locate_lines(text, [source for source, _ in found])
    return tuple(
        Cell(number=number, text="".join(source), lines=own, may_raise=may_raise)
        for number, ((source, may_raise), own) in enumerate(
            zip(found, lines, strict=True), start=1
        )
    )


def find_language(notebook: dict[str, Any]) -> str:
    """Return the language of a notebook's kernel; Python where none is named."""
    metadata = notebook.get("metadata", {})
    named = (
        metadata.get("language_info", {}).get("name"),
        metadata.get("kernelspec", {}).get("language"),
        "python" if "python" in str(metadata.get("kernelspec", {}).get("name")) else "",
    )
    language = str(next(filter(None, named), "python")).lower()
    return "python" if language in {"python", "ipython"} else language


def find_cells(notebook: dict[str, Any]) -> Iterator[tuple[list[str], bool]]:
    """Yield the lines of each code cell, and whether it may raise.

    A notebook before format 4 has sheets, and calls the text of a cell its input.
    """
    sheets = notebook.get("worksheets", [notebook])
    for sheet in sheets:
        for cell in sheet["cells"]:
            if cell["cell_type"] == "code":
                source = cell.get("source", cell.get("input", ""))
                tags = cell.get("metadata", {}).get("tags", ())
                yield "".join(source).splitlines(keepends=True), MAY_RAISE in tags


def locate_lines(
    text: str, sources: Sequence[Sequence[str]]
) -> Iterator[tuple[int | None, ...]]:
    """Yield for each cell where its lines stand in the file, one a line of it."""
    known = [line.strip(" \t,") for line in text.splitlines()]
    start = 0
    for source in sources:
        found: list[int | None] = []
        for line in source:
            options = json.dumps(line), json.dumps(line, ensure_ascii=False)
            rest = range(start, len(known)) if None not in found else ()
            at = next((n for n in rest if known[n] in options), None)
            start = start if at is None else at + 1
            found.append(None if at is None else at + 1)
        yield tuple(found)
