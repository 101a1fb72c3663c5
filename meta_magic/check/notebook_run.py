"""Run the cells of a notebook in their order, each under ``%%meta``.

Diagnostics name the line of the ``.ipynb`` file, as GitHub annotates it. Read
:func:`run_notebook` first.
"""

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

from meta_magic.check.block_run import pick_seconds, read_options, start_sandbox
from meta_magic.check.judging import Judge, judge_unstarted
from meta_magic.check.records import BlockResult, Request
from meta_magic.errors import CheckError

if TYPE_CHECKING:
    from meta_magic.magic.extension import RanCell


MAY_RAISE: Final = "raises-exception"
"""The tag of a cell that is expected to raise; ``nbclient`` has it, too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One code cell.

    Attributes:
        number: Among the code cells, from 1.
        text: Its source.
        lines: For each of its lines the line of the file; None where that is unknown.
        may_raise: Whether it is expected to raise.
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


def run_notebook(request: Request) -> Iterator[BlockResult]:
    """Run the cells; yield a part for each recorded one, up to the first that fails."""
    path = cast("Path", request.subject.path)
    if request.checks_contents:
        raise CheckError(
            "--init checks scripts and functions: of a notebook, a later cell may "
            "initialize what an earlier one built"
        )
    cells = read_cells(path)
    read_options(request)
    from meta_magic.magic.extension import NotebookShell  # noqa: PLC0415  imports IPython

    os.chdir(path.parent)  # as a kernel does
    shell = NotebookShell(path, write_line(request))
    cell_lines = CellLines(str(path))
    judge = Judge(request, start_sandbox(request), cell_lines)
    for cell in cells:
        if not cell.text.strip():
            continue
        ran = shell.run(cell.text, cell.number)
        cell_lines.add(cell, ran)
        part = judge_cell(judge, cell, ran, cell_lines)
        if part is not None:
            yield part
        if part is not None and part.outcome != "right" and ran.error is not None:
            return


def write_line(request: Request) -> str:
    """Return the line of ``%%meta`` with the options of the command."""
    settings = request.settings
    arguments = ["%%meta", "--quiet", "--named", settings["named"]]
    arguments += ["--value-seconds", f"{pick_seconds(request):g}"]
    if settings["as_device"] is not None:
        arguments += ["--as", settings["as_device"]]
    if settings.get("world") is not None:
        arguments += [
            "--world",
            str(settings.get("world")),
            "--rank",
            settings["ranks"],
        ]
    if settings.get("per_node") is not None:
        arguments += ["--per-node", str(settings.get("per_node"))]
    for text in settings["assume"]:
        arguments += ["--assume", text]
    if settings.get("dims"):
        arguments += ["--dims", settings["dims"]]
    wrong = settings.get("check", False)
    arguments += ["--check", *([wrong] if isinstance(wrong, str) else [])] * bool(wrong)
    return " ".join([*arguments, *["--check-values"] * settings["check_values"]])


class CellLines:
    """Finds the line of the notebook's file for a line of a cell that ran."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._cells: dict[str, Cell] = {}

    def add(self, cell: Cell, ran: "RanCell") -> None:
        """Keep the file name that a cell was compiled under."""
        if ran.trace is not None:
            self._cells[ran.trace.cell.file] = cell

    def __call__(
        self, file: str | None, line: int | None
    ) -> tuple[str | None, int | None]:
        """Return file and line to report for a line of a recorded file."""
        cell = self._cells.get(file or "")
        if cell is None:
            return file, line
        return self.path, cell.find_line(line)


def judge_cell(
    judge: Judge, cell: Cell, ran: "RanCell", cell_lines: CellLines
) -> BlockResult | None:
    """Return the results of a cell; None if it ran without a recording."""
    error = None if cell.may_raise else ran.error
    name = f"cell {cell.number}"
    if ran.trace is not None:
        return judge.judge(ran.trace, error, name)
    if error is None:
        return None
    line = getattr(error, "lineno", None) or 1
    return judge_unstarted(error, cell_lines.path, cell.find_line(line), name)


def read_cells(path: Path) -> tuple[Cell, ...]:
    """Return the code cells of a notebook."""
    try:
        text = path.read_text(encoding="utf-8")
        notebook = json.loads(text)
        found = list(find_cells(notebook))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        kind = type(error).__name__
        raise CheckError(f"the notebook cannot be read ({kind}: {error})") from None
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

    Before format 4 a notebook has ``worksheets``, and ``input`` instead of ``source``.
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
    """Yield for each cell the line of the file of each of its lines."""
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
