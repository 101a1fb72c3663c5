"""The cells that ran in a shell, as they ran, for explanations across cells.

A cell that was edited or deleted since is kept as it ran. Cells from before
``%load_ext`` are read from IPython's own history.
"""

from time import process_time
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from meta_magic.magic.cell import cell_number, read_body

if TYPE_CHECKING:
    from collections.abc import Iterator

    from meta_magic.trace.rerun import EarlierCell

MAX_CELLS: Final = 1000
"""How many cells are kept."""

TRANSPARENT: Final = ("%%meta", "%%time", "%%capture")
"""Cell magics that run their body in the user's namespace."""


class Ran(NamedTuple):
    """A cell that ran to its end.

    Attributes:
        number: The n of ``In[n]``.
        raw: The cell as typed.
        seconds: Processor time that it took.
    """

    number: int
    raw: str
    seconds: float


class History:
    """Keeps the cells that ran.

    Args:
        shell: The IPython shell.
    """

    def __init__(self, shell: Any) -> None:
        self._shell = shell
        earlier = shell.history_manager.input_hist_raw
        before = earlier[: cell_number(shell)]  # without the one that loads this
        self._ran = [Ran(n, raw, 0.0) for n, raw in enumerate(before) if raw]
        self._started = 0.0

    def start(self) -> None:
        """Note that a cell begins."""
        self._started = process_time()

    def end(self, result: Any) -> None:
        """Keep a cell that ended, if it raised no error."""
        info = result.info
        if not result.success or not getattr(info, "store_history", False):
            return
        number = result.execution_count or self._shell.execution_count
        self._ran.append(Ran(number, info.raw_cell, process_time() - self._started))
        del self._ran[:-MAX_CELLS]

    def list_cells(self) -> "list[EarlierCell]":
        """Return the cells that ran so far, the oldest first, as Python."""
        return [*self._read_cells()]

    def _read_cells(self) -> "Iterator[EarlierCell]":
        from meta_magic.trace.rerun import EarlierCell  # noqa: PLC0415  needs torch

        numbers = getattr(self._shell.compile, "_filename_map", {})  # not in IPython 7
        files = {number: file for file, number in numbers.items()}
        for number, raw, seconds in self._ran:
            body = raw
            if raw.startswith("%%"):
                first, _, body = raw.partition("\n")
                if not first.startswith(TRANSPARENT):
                    continue
            source, _, above = read_body(self._shell, body, raw)
            text = "\n" * len(above) + source
            file = files.get(number, "")
            yield EarlierCell(f"In[{number}]", text, raw, seconds, file)
