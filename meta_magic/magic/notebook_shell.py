"""Run the cells of a notebook where no front end is, each as ``%%meta`` would."""

import asyncio
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from IPython.core.interactiveshell import InteractiveShell
from traitlets.config import Config

from meta_magic.magic.extension import load

__all__ = ["NotebookShell", "RanCell"]

MAGIC = "%%meta"


@dataclass(frozen=True, slots=True, kw_only=True)
class RanCell:
    """What came of a cell.

    Attributes:
        trace: What was recorded; None if nothing was.
        error: What ended it; None if nothing did.
        is_unread: Whether that came before any of it ran.
    """

    trace: Any
    error: BaseException | None
    is_unread: bool


class Shell(InteractiveShell):
    """A shell that has no window: ``%matplotlib`` finds none to wait for."""

    def enable_gui(self, gui: object = None) -> None:
        """Do nothing."""


class NotebookShell:
    """Runs cells one after another, as a kernel does.

    Args:
        path: The notebook.
        line: The line of ``%%meta`` that is put in front of each cell.
    """

    def __init__(self, path: Path, line: str) -> None:
        settings = Config()
        settings.HistoryManager.enabled = False
        settings.InteractiveShell.colors = "NoColor"
        self._shell: Any = Shell.instance(config=settings)
        load(self._shell)
        self._shell.magics_manager.registry["MetaMagics"].is_patient = True
        self._line = line
        self._loop = asyncio.new_event_loop()
        sys.argv = [str(path)]
        sys.path.insert(0, str(path.parent))

    def run(self, text: str) -> RanCell:
        """Run a cell; what it raises is returned."""
        names = self._shell.user_ns
        before = names.get("_meta")
        result = self._loop.run_until_complete(self._run(text))
        trace = names.get("_meta")
        unread, error = result.error_before_exec, result.error_in_exec
        return RanCell(
            trace=None if trace is before else trace,
            error=unread or error,
            is_unread=unread is not None,
        )

    async def _run(self, text: str) -> Any:
        """Run a cell with ``%%meta`` in front, its lines as they stand without."""
        is_own = text.lstrip().split(maxsplit=1)[:1] == [MAGIC]
        whole = text if is_own else f"{self._line}\n{text}"
        code, failed = text, None
        try:
            self._shell.transform_cell(text)  # is it one, as it is written?
            code = self._shell.transform_cell(whole)
        except Exception:  # noqa: BLE001  told as IPython tells it
            failed = sys.exc_info()
        return await self._shell.run_cell_async(
            text,
            store_history=True,
            transformed_cell=code,
            preprocessing_exc_tuple=failed,
        )
