"""The cells of a notebook that ran before a block, and their names.

Nothing here imports torch: the cells are kept before torch is imported.
"""

import sys
from collections.abc import Callable
from typing import Any, NamedTuple


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
