"""Run the cells of a notebook in their order, each under ``%%meta``."""

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, cast

from meta_magic.check.checked_block import close_doors, pick_seconds, read_options
from meta_magic.check.judging import Judge, judge_unread
from meta_magic.check.notebook_cells import Cell, read_cells
from meta_magic.check.verdicts import Part, Request

if TYPE_CHECKING:
    from pathlib import Path

    from meta_magic.magic.notebook_shell import RanCell

__all__ = ["run_notebook", "write_line"]


def run_notebook(request: Request) -> Iterator[Part]:
    """Run the cells; yield a part for each that was recorded, up to one that fails.

    Raises:
        CheckError: It is no notebook of Python's, or an option is none.
    """
    path = cast("Path", request.subject.path)
    cells = read_cells(path)
    read_options(request)
    from meta_magic.magic.notebook_shell import NotebookShell  # noqa: PLC0415  imports IPython

    os.chdir(path.parent)  # as a notebook's kernel is started there
    shell = NotebookShell(path, write_line(request))
    places = Places(str(path))
    judge = Judge(request, close_doors(request), places)
    for cell in cells:
        if not cell.text.strip():
            continue
        ran = shell.run(cell.text)
        places.add(cell, ran)
        part = judge_cell(judge, cell, ran, places)
        if part is not None:
            yield part
        if part is not None and part.outcome != "right" and ran.error is not None:
            return


def write_line(request: Request) -> str:
    """Return the line of ``%%meta`` that has the settings of the command."""
    settings = request.settings
    words = ["%%meta", "--quiet", "--named", settings["named"]]
    words += ["--value-seconds", f"{pick_seconds(request):g}"]
    if settings["as_device"] is not None:
        words += ["--as", settings["as_device"]]
    for text in settings["assume"]:
        words += ["--assume", text]
    return " ".join([*words, *["--check-values"] * settings["check_values"]])


class Places:
    """Where lines of cells stand in the notebook's file.

    Args:
        path: The notebook.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self._cells: dict[str, Cell] = {}

    def add(self, cell: Cell, ran: "RanCell") -> None:
        """Learn the name under which a cell ran."""
        if ran.trace is not None:
            self._cells[ran.trace.cell.file] = cell

    def __call__(
        self, file: str | None, line: int | None
    ) -> tuple[str | None, int | None]:
        """Return where a line of a recorded file stands."""
        cell = self._cells.get(file or "")
        if cell is None:
            return file, line
        return self.path, cell.find_line(line)


def judge_cell(judge: Judge, cell: Cell, ran: "RanCell", places: Places) -> Part | None:
    """Return what came of a cell; None for one that there is nothing to say of."""
    error = None if cell.may_raise else ran.error
    name = f"cell {cell.number}"
    if ran.trace is not None:
        return judge.judge(ran.trace, error, name)
    if error is None:
        return None
    line = getattr(error, "lineno", None) or 1
    return judge_unread(error, places.path, cell.find_line(line), name)
