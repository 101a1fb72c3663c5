"""Numbers as text, names of cells, and a line that shows progress.

``1.5 GiB`` are 1.5 * 2**30 bytes, ``70.6 B`` are 70.6 * 10**9.

Nothing here imports torch: the cells that ran before a block are kept before torch is
imported.
"""

import os
import sys
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple, Self

BINARY: Final = ("bytes", "KiB", "MiB", "GiB", "TiB", "PiB")
DECIMAL: Final = ("", "K", "M", "B", "T")
FLOPS: Final = ("FLOPs", "KFLOPs", "MFLOPs", "GFLOPs", "TFLOPs", "PFLOPs", "EFLOPs")


def format_bytes(nbytes: int) -> str:
    """Return bytes in the largest binary unit, such as ``1.5 GiB``."""
    return "1 byte" if nbytes == 1 else scale(nbytes, 1024, BINARY)


def format_count(count: int) -> str:
    """Return a count with a decimal suffix, such as ``70.6 B``; exact below 1000."""
    return scale(count, 1000, DECIMAL).rstrip()


def format_flops(flops: int) -> str:
    """Return floating-point operations in the largest decimal unit."""
    return scale(flops, 1000, FLOPS)


def format_shape(shape: Sequence[int]) -> str:
    """Return a shape as Python writes a tuple of sizes."""
    return f"({', '.join(map(str, shape))}{',' if len(shape) == 1 else ''})"


def format_line(line: int | None) -> str:
    """Return the beginning of a sentence on a line of code; "" for no line."""
    return f"line {line}: " if line else ""


def scale(number: int, base: int, units: Sequence[str]) -> str:
    """Return ``number`` in the largest unit that is not larger than it."""
    value, unit = float(number), 0
    # 1023.96 KiB would be rounded to 1024.0 KiB: it is shown as 1.0 MiB.
    while value >= base - (0.05 if unit else 0) and unit < len(units) - 1:
        value /= base
        unit += 1
    digits = f"{number:,}" if unit == 0 else f"{value:,.1f}"
    return f"{digits} {units[unit]}"


class NamedSize(int):
    """An integer with the formula that it has in the names of a block.

    Args:
        size: The integer.
        text: The formula; the number itself where it depends on no name.
    """

    text: str

    def __new__(cls, size: int, text: str) -> Self:
        """Return the integer with its formula."""
        made = super().__new__(cls, size)
        made.text = text
        return made

    def __str__(self) -> str:
        return self.text

    def __eq__(self, other: object) -> bool:
        if isinstance(other, NamedSize) and other.text != self.text:
            return False
        return int.__eq__(self, other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = int.__hash__

    def __reduce__(self) -> tuple[type["NamedSize"], tuple[int, str]]:
        return NamedSize, (int(self), self.text)


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


WIDTH: Final = 100
"""Letters of a line in a notebook: a longer one before it is written over."""


def show_line(text: str) -> None:
    """Show a line instead of the last one, by the last outlet; "" removes it."""
    OUTLETS[-1](text)


def write_to_terminal(text: str) -> None:
    """Replace the last line of the terminal, or of the output of a notebook's cell."""
    if sys.stderr.isatty():
        sys.stderr.write(f"\r\033[K{text}")
        sys.stderr.flush()
    elif type(sys.stdout).__module__.startswith("ipykernel"):
        sys.stdout.write(f"\r{text:<{WIDTH}}\r")
        sys.stdout.flush()


OUTLETS: Final[list[Callable[[str], object]]] = [write_to_terminal]
"""Functions that can show lines in this process; the last one does."""


def _keep_first_outlet() -> None:
    """Remove outlets that need a thread: a forked child does not have it.

    The child may also have inherited that thread's lock while it was locked.
    """
    del OUTLETS[1:]


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_keep_first_outlet)
