"""Run the cells of a notebook without a front end, each under ``%%meta``.

``meta-magic check notebook.ipynb`` uses it. Read :class:`NotebookShell` first.
"""

import asyncio
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from IPython.core.interactiveshell import InteractiveShell
from traitlets.config import Config

from meta_magic.magic.extension import load

MAGIC = "%%meta"


@dataclass(frozen=True, slots=True, kw_only=True)
class RanCell:
    """The results of a cell."""

    trace: Any
    error: BaseException | None


class Shell(InteractiveShell):
    """A shell without windows: ``%matplotlib`` must not wait for one."""

    def enable_gui(self, gui: object = None) -> None:
        """Do nothing."""


class NotebookShell:
    """Runs cells one after another, as a kernel does.

    ``line`` is the line of ``%%meta`` above each cell.
    """

    def __init__(self, path: Path, line: str) -> None:
        settings = Config()
        settings.HistoryManager.enabled = False
        settings.InteractiveShell.colors = "NoColor"
        self._shell: Any = Shell.instance(config=settings)
        load(self._shell)
        self._shell.magics_manager.registry["MetaMagics"].is_check = True
        self._line = line
        self._loop = asyncio.new_event_loop()
        sys.argv = [str(path)]
        sys.path.insert(0, str(path.parent))

    def run(self, text: str, number: int) -> RanCell:
        """Run a cell as ``In[number]``; an error is returned, not raised."""
        self._shell.execution_count = number
        names = self._shell.user_ns
        before = names.get("_meta")
        result = self._loop.run_until_complete(self._run(text))
        trace = names.get("_meta")
        return RanCell(
            trace=None if trace is before else trace,
            error=result.error_before_exec or result.error_in_exec,
        )

    async def _run(self, text: str) -> Any:
        """Run a cell under ``%%meta``, with its own line numbers."""
        is_own = text.lstrip().split(maxsplit=1)[:1] == [MAGIC]
        whole = text if is_own else f"{self._line}\n{text}"
        code, failed = text, None
        try:
            self._shell.transform_cell(text)  # raises for a cell that IPython refuses
            code = self._shell.transform_cell(whole)
        except Exception:  # noqa: BLE001  IPython reports it below
            failed = sys.exc_info()
        result = await self._shell.run_cell_async(
            text,
            store_history=True,
            transformed_cell=code,
            preprocessing_exc_tuple=failed,
        )
        self._shell.events.trigger("post_run_cell", result)
        return result
