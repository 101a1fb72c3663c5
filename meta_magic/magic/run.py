"""One run of a cell: its recording, its progress line, its report."""

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

from IPython.core.error import UsageError
from IPython.display import display

from meta_magic.magic.cell import Body
from meta_magic.magic.progress import ProgressLine
from meta_magic.magic.reports import build_outputs, find_cell_id, is_notebook
from meta_magic.magic.tracebacks import add_below, trim_traceback
from meta_magic.session.collector import RARE_COLLECTION

if TYPE_CHECKING:
    from meta_magic.replaying.value_progress import Show
    from meta_magic.session.recording import Recording
    from meta_magic.torch_private.interrupts import Interrupts
    from meta_magic.trace.options import Options, ValueLimits
    from meta_magic.trace.rerun import Rerun
    from meta_magic.trace.trace import Trace

__all__ = ["Run", "read_limits"]

NO_TORCH = "%%meta needs PyTorch, which is not installed: run `pip install torch`"


class Magics(Protocol):
    """What a run needs of the magics that it belongs to.

    Attributes:
        shell: The IPython shell.
        running: File name by text of the cells that are running now.
        raw_cell: The newest cell as it was typed.
        is_recorded: Whether it was recorded, or a part of it.
    """

    shell: Any
    running: dict[str, str]
    raw_cell: str | None
    is_recorded: bool


class Run:
    """One run of a cell: its recording, its progress line, its report.

    Attributes:
        recording: Records the cell.
        interrupts: Takes those that come before and after the guard does.

    Raises:
        UsageError: torch is not installed, or an option is none.
    """

    def __init__(self, magics: Magics, options: Any, body: Body, cell: str) -> None:
        self._shell = magics.shell
        magics.is_recorded = True
        self._running = magics.running
        self._options = options
        self._cell = cell
        self._raw = magics.raw_cell
        self._name = body.name
        self._first_line, self._head = body.first_line, body.head
        self._error: BaseException | None = None
        self._settings = {
            "depth": options.depth,
            "height": options.height,
            "hide": options.hide,
        }
        namespace = self._shell.user_ns
        self.interrupts = make_interrupts()
        with self.interrupts, RARE_COLLECTION:  # of what is imported, all stays
            self._progress = ProgressLine(
                lambda: self.recording.n_operators, is_kernel=is_notebook(self._shell)
            )
            show = self._progress.show
            self.recording, self._rerun = start_recording(
                body, options, namespace, show
            )
        self._is_outermost = self._raw is not None and self._raw not in self._running
        if self._raw is not None and self._is_outermost:
            self._running[self._raw] = self._name

    def start(self) -> None:
        """Begin to show how far it is."""
        self._progress.start()

    def fail(self, error: BaseException) -> None:
        """Note what ended the cell, and make its traceback begin in the cell."""
        self._error = error
        trim_traceback(self._shell, error, self._name)

    def finish(self) -> None:
        """Keep the trace and show it."""
        with RARE_COLLECTION:
            self._finish()

    def _finish(self) -> None:
        outputs = None
        try:
            if self._raw is not None and self._is_outermost:
                self._running.pop(self._raw, None)
            trace = self._keep_trace()
            if not self._options.quiet:
                key = find_cell_id(self._shell) or self._raw or ""
                outputs = build_outputs(self._shell, trace, key, self._settings)
            if outputs is None or outputs.live is None:  # else the report has it
                self._explain(trace)
        finally:
            self._error = None
            self._progress.finish(None if outputs is None else outputs.bundle)
        if outputs is not None and outputs.live is not None:
            display(outputs.live)

    def _explain(self, trace: "Trace") -> None:
        """Say below the traceback why the cell failed."""
        if self._error is not None and trace.explanation is not None:
            add_below(self._error, trace.explanation.text)

    def _keep_trace(self) -> "Trace":
        from meta_magic.trace.notes import CellSource  # noqa: PLC0415  needs torch

        namespace = self._shell.user_ns
        source = CellSource(
            text=self._cell,
            file=self._name,
            first_line=self._first_line,
            head=self._head,
        )
        trace = self.recording.finish(self._error, namespace, source)
        trace = replace(trace, rerun=self._rerun)
        namespace["_meta"] = trace
        if self._options.out is not None:
            namespace[self._options.out] = trace
        return trace


def make_interrupts() -> "Interrupts":
    """Return what takes interrupts; they wait where a thread starts and ends.

    Raises:
        UsageError: torch is not installed.
    """
    try:
        from meta_magic.torch_private.interrupts import Interrupts, unbroken  # noqa: PLC0415  needs torch
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise UsageError(NO_TORCH) from None
    unbroken(ProgressLine.start)
    unbroken(ProgressLine.show)
    unbroken(ProgressLine.finish)
    return Interrupts()


def start_recording(
    body: Body,
    options: Any,
    namespace: Mapping[str, object],
    show: "Show",
) -> tuple["Recording", "Rerun | None"]:
    """Return a new recording, and what it takes to make it again, if that can be.

    Raises:
        UsageError: An option is none.
    """
    from meta_magic.session.recording import Recording  # noqa: PLC0415  needs torch
    from meta_magic.trace.rerun import make_rerun  # noqa: PLC0415  as well

    chosen = read_options(options)
    rerun = make_rerun(
        text=body.text,
        file=body.name,
        of_module=namespace,
        variables=namespace,
        names=frozenset(body.names),
        options=chosen,
    )
    recording = Recording(body.name, options=chosen, namespace=namespace, show=show)
    return recording, rerun


def read_options(options: Any) -> "Options":
    """Return what the magic's line chooses.

    Raises:
        UsageError: One of the values is none.
    """
    from meta_magic.trace.options import (  # noqa: PLC0415  needs torch
        Options,
        read_assumptions,
        read_device,
        read_meaning,
    )

    try:
        return Options(
            not options.no_cache,
            read_limits(options),
            *read_device(options.as_device),
            read_assumptions(options.assume),
            read_meaning(options.named),
            options.check_values,
            options.is_patient,
        )
    except ValueError as error:
        raise UsageError(f"%%meta: {error}") from None


def read_limits(options: Any) -> "ValueLimits":
    """Return what a value may take, as the magic's line or its settings say."""
    from meta_magic.trace.options import ValueLimits  # noqa: PLC0415  needs torch

    nbytes, flops = (
        None if number is None else int(number)
        for number in (options.value_nbytes, options.value_flops)
    )
    return ValueLimits(nbytes, flops, float(options.value_seconds))
