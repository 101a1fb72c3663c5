"""Read notebooks and scripts as the cells that a notebook would run."""

import ast
import json
import re
from pathlib import Path

LEFT_OUT = re.compile(r"^(\s*)(!|%(?:pip|conda|matplotlib|reload_ext|load_ext)\b).*")
"""Lines that would install or load something, or run a shell."""
SHELL_CELL = re.compile(r"%%(bash|sh|script|system|sx|!|writefile|latex|html|js)")
BOUNDARY = re.compile(r"^# ?%%.*\n|^#{20,}\n", re.MULTILINE)
"""Where editors and sphinx-gallery divide a script into cells."""


def find_files(path: Path) -> list[Path]:
    """Return the notebooks and scripts below a folder, or the file itself."""
    if path.is_file():
        return [path]
    found = [p for ending in ("*.ipynb", "*.py") for p in path.rglob(ending)]
    return sorted(p for p in found if "checkpoint" not in p.parent.name)


def read_cells(path: Path, *, split: bool = False) -> list[str]:
    """Return the cells of a notebook, or of a script.

    Args:
        path: The file.
        split: Divide a script that is not divided at its top-level blank lines.
    """
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".ipynb":
        cells = [
            "".join(cell["source"])
            for cell in json.loads(text).get("cells", [])
            if cell["cell_type"] == "code"
        ]
    else:
        cells = split_script(text) if split else BOUNDARY.split(text)
    prepared = [prepare(cell) for cell in cells if not SHELL_CELL.match(cell.lstrip())]
    return [cell for cell in prepared if has_code(cell)]


def split_script(text: str) -> list[str]:
    """Divide a script at the blank lines between its top-level statements."""
    lines = text.splitlines(keepends=True)
    cells, begin = [], 0
    for node in ast.parse(text).body:
        decorators = getattr(node, "decorator_list", [])
        first = min([node.lineno, *(d.lineno for d in decorators)]) - 1
        if first > begin and not lines[first - 1].strip():
            cells.append("".join(lines[begin:first]))
            begin = first
    return [*cells, "".join(lines[begin:])]


def prepare(cell: str) -> str:
    """Return a cell without what installs, loads or runs a shell; lines stay."""
    lines = (LEFT_OUT.sub(r"\1pass", line) for line in cell.splitlines())
    return "\n".join(lines)


def has_code(cell: str) -> bool:
    """Whether a cell is more than comments and ``pass``."""
    lines = (line.strip() for line in cell.splitlines())
    return any(line and line != "pass" and not line.startswith("#") for line in lines)


def is_recordable(cell: str) -> bool:
    """Whether a cell has no magic of its own but ``%%time``, which records, too."""
    return not cell[find_begin(cell) :].lstrip().startswith("%%")


def record(cell: str) -> str:
    """Return a cell with ``%%meta`` in front of it, or after ``%%time``, if it can."""
    begin = find_begin(cell)
    return f"{cell[:begin]}%%meta\n{cell[begin:]}" if is_recordable(cell) else cell


def find_begin(cell: str) -> int:
    """Return where a cell begins, after a line with ``%%time``."""
    timed = re.match(r"\s*%%time\b.*\n", cell)
    return timed.end() if timed else 0
