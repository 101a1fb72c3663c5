"""A block of a subject, run under a recording, as far as it comes."""

import tempfile
from collections.abc import Callable
from dataclasses import replace
from types import CodeType
from typing import Any

import torch

from meta_magic.check.verdicts import Request
from meta_magic.errors import CheckError
from meta_magic.session.recording import Recording
from meta_magic.trace.notes import CellSource
from meta_magic.trace.options import (
    LIMITS,
    N_VALUES,
    Options,
    ValueLimits,
    read_assumptions,
    read_device,
    read_meaning,
)
from meta_magic.trace.rerun import Rerun, list_names, make_rerun
from meta_magic.trace.trace import Trace
from meta_magic.trials.sandbox import Refused, enter_sandbox

__all__ = ["CheckedBlock", "close_doors", "pick_seconds", "read_options"]


def read_options(request: Request) -> Options:
    """Return what the command line chooses for a recording.

    Raises:
        CheckError: One of the values is none.
    """
    settings = request.settings
    try:
        device, n_devices = read_device(settings["as_device"])
        return Options(
            limits=ValueLimits(seconds=pick_seconds(request)),
            device=device,
            n_devices=n_devices,
            assumed=read_assumptions(settings["assume"]),
            named=read_meaning(settings["named"]),
            check_values=settings["check_values"],
            is_patient=True,
        )
    except ValueError as error:
        raise CheckError(str(error)) from None


def pick_seconds(request: Request) -> float:
    """Return the seconds that a value may take: all then end before the child must."""
    return min(LIMITS.seconds, request.seconds / N_VALUES)


def close_doors(request: Request) -> list[str]:
    """Refuse files, network and processes from now on, if that is asked for.

    Returns:
        What was refused, in words; it grows.
    """
    if not request.is_sandboxed:
        return []
    tempfile.gettempdir()  # libraries ask for it, and Python writes a file to find out
    torch.empty(1, device="meta").relu()  # its first kernel has torch make a folder
    return enter_sandbox()


class CheckedBlock:
    """One block and its recording.

    Args:
        request: What was asked for.
        file: The file whose lines are told.
        namespace: The variables that it runs among, which are its module's.
        text: The whole of the file, if all of it is the block; else "".

    Attributes:
        error: What ended it; None if nothing did.
    """

    def __init__(
        self, request: Request, file: str, namespace: dict[str, Any], text: str = ""
    ) -> None:
        self._options = read_options(request)
        self._source = CellSource(text=text, file=file)
        self._namespace = namespace
        self._recording = Recording(file, options=self._options, namespace=namespace)
        self.error: BaseException | None = None

    def run(self, block: Callable[[], object], code: CodeType | None = None) -> Trace:
        """Run the block and return what was recorded of it.

        Args:
            block: Runs it.
            code: Its code, where it is a whole file and may be recorded again.
        """
        rerun = None if code is None else self._make_rerun(code)
        kept: list[object] = []  # what it returns lives until it is described
        try:
            kept.append(self._recording.guard.run(block))
        except (Exception, SystemExit, KeyboardInterrupt, Refused) as error:  # noqa: BLE001  the user's own
            is_success = isinstance(error, SystemExit) and not error.code
            self.error = None if is_success else error
        return self._finish(rerun)

    def _make_rerun(self, code: CodeType) -> Rerun | None:
        return make_rerun(
            text=self._source.text,
            file=self._source.file,
            of_module=self._namespace,
            variables=self._namespace,
            names=list_names(code),
            options=self._options,
        )

    def _finish(self, rerun: Rerun | None) -> Trace:
        trace = self._recording.finish(self.error, self._namespace, self._source)
        return replace(trace, rerun=rerun)
