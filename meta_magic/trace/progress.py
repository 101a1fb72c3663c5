"""A line of progress: on a terminal, in a notebook, or where a caller shows it."""

import os
import sys
from collections.abc import Callable
from typing import Final

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
