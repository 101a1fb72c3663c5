"""Record the programs of this folder, and return what is noted of them."""

from pathlib import Path

from meta_magic import Note
from tests.conformance.recorded_cells import record_cell, split_programs

__all__ = ["find_notes", "read_cases"]

IMPORTS = "import copy, math, torch, torch.nn as nn, torch.nn.functional as F\n"


def read_cases(kind: str) -> dict[str, str]:
    """Return the ``wrong`` or ``odd`` programs by name, each with imports before it."""
    paths = sorted(Path(__file__).parent.glob(f"{kind}_*.py"))
    return split_programs(IMPORTS, "\n".join(path.read_text("utf-8") for path in paths))


def find_notes(text: str) -> list[Note]:
    """Return all notes on mistakes in a program.

    Raises:
        AssertionError: It does not run to its end.
    """
    trace = record_cell(text, "<program>")
    assert trace.error is None, trace.error
    return [*trace.wrong]
