"""The cells that ran in a shell, for explanations across cells.

A cell that was edited or deleted since is kept as it ran. Cells from before
``%load_ext`` are read from IPython's own history. To keep a cell costs nothing: it is
read as Python only when a later cell failed.
"""

from pathlib import Path
from time import process_time
from traceback import walk_tb
from typing import Any, Final

from meta_magic.magic.cell import cell_number
from meta_magic.trace.earlier_cells import EarlierCell

MAX_CELLS: Final = 1000
"""How many cells are kept."""

TRANSPARENT: Final = frozenset({"%%meta", "%%time", "%%capture"})
"""Cell magics that run their body in the user's namespace."""


class History:
    """Keeps the cells that ran."""

    def __init__(self, shell: Any) -> None:
        self._shell = shell
        self._started = 0.0
        self.cells: list[EarlierCell] = []
        earlier = shell.history_manager.input_hist_raw
        for number in range(1, min(cell_number(shell), len(earlier))):
            self._keep(number, earlier[number], 0.0)

    def start(self) -> None:
        """Note that a cell begins."""
        self._started = process_time()

    def end(self, result: Any) -> None:
        """Keep a cell that ended, and the line at which it raised, if it did."""
        info, error = result.info, result.error_in_exec
        line = 0 if error is None else find_line(error)
        has_run = result.success or line
        if has_run and getattr(info, "store_history", False):
            number = result.execution_count or self._shell.execution_count
            self._keep(number, info.raw_cell, process_time() - self._started, line)

    def _keep(self, number: int, typed: str, seconds: float, line: int = 0) -> None:
        name = f"In[{number}]"
        self.cells.append(EarlierCell(name, typed, seconds, line, self._read))
        del self.cells[:-MAX_CELLS]

    def _read(self, typed: str) -> str:
        """Return a cell as Python, at its lines; "" where other code runs its body."""
        lines = typed.split("\n")
        n_above = 0
        for line in lines:
            if line.strip() and not line.startswith("%%"):
                break
            if line.startswith("%%") and line.split()[0] not in TRANSPARENT:
                return ""
            n_above += 1
        body: str = self._shell.transform_cell("\n".join(lines[n_above:]))
        return "\n" * n_above + body


def find_line(error: BaseException) -> int:
    """Return the line of a cell that raised; 0 if it is not known."""
    lines = [
        line
        for frame, line in walk_tb(error.__traceback__)
        if frame.f_code.co_name == "<module>"
        and not Path(frame.f_code.co_filename).is_file()
    ]
    return lines[-1] if lines else 0
