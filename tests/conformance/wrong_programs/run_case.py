"""Record the programs of this folder, and return what is noted of them."""

from pathlib import Path

from meta_magic import Note
from tests.conformance.recorded_cells import record_cell, split_programs

__all__ = ["find_notes", "read_cases"]

IMPORTS = "import copy, math, torch, torch.nn as nn, torch.nn.functional as F\n"


def read_cases(path: Path) -> dict[str, str]:
    """Return the programs of a file by name, each with the imports before it."""
    return split_programs(IMPORTS, path.read_text("utf-8"))


def find_notes(text: str) -> list[Note]:
    """Return all notes on mistakes in a program.

    Raises:
        AssertionError: It does not run to its end.
    """
    trace = record_cell(text, "<program>")
    assert trace.error is None, trace.error
    return [*trace.wrong]
