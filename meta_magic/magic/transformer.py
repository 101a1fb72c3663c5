"""Turn a ``%%meta`` cell that awaits into code that awaits, before IPython runs it.

Magics cannot be coroutines, so a cell whose body awaits is rewritten to await an async
twin of the magic. A body that does not parse is handed to IPython as plain code, so
that it reports the error itself, with the right line and no frame of ours.
"""

import inspect
from collections.abc import Sequence
from typing import Any

from meta_magic.magic.cell import TOP_LEVEL_AWAIT

__all__ = ["AwaitTransformer"]

MAGIC = "%%meta"


class AwaitTransformer:
    """Input transformer; without side effects: IPython also asks it for checks."""

    has_side_effects = False

    def __init__(self, shell: Any) -> None:
        self._shell = shell

    def __call__(self, lines: Sequence[str]) -> Sequence[str]:
        """Return the lines of a cell, rewritten if it is one of ours that awaits."""
        if not lines or lines[0].split()[:1] != [MAGIC]:
            return lines
        cell = "".join(lines[1:])
        if not cell.strip():
            return lines
        try:
            source = self._shell.transform_cell(cell)
            code = compile(source, "<cell>", "exec", TOP_LEVEL_AWAIT)
        except (SyntaxError, ValueError):
            return [f"# {lines[0]}", *lines[1:]]
        if not code.co_flags & inspect.CO_COROUTINE:
            return lines
        options = lines[0].strip().removeprefix(MAGIC).strip()
        magics = "get_ipython().magics_manager.registry['MetaMagics']"
        return [f"await {magics}.meta_async({options!r}, {cell!r})\n"]
