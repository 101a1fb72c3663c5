"""One run of a cell: its recording, its line of progress, its report.

Read :class:`Run` first; ``session/recording.py`` records.
"""

import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from IPython.core.error import UsageError
from IPython.display import display

from meta_magic.magic.cell import Body
from meta_magic.magic.reports import (
    build_outputs,
    find_cell_id,
    is_notebook,
    show_ranks,
)
from meta_magic.magic.tracebacks import trim_traceback
from meta_magic.session.collector import RARE_COLLECTION
from meta_magic.trace.progress import OUTLETS, write_to_terminal

if TYPE_CHECKING:
    from IPython.display import DisplayHandle

    from meta_magic.session.recording import Recording
    from meta_magic.torch_private.interrupts import Interrupts
    from meta_magic.trace.options import Options, Rerun, ValueLimits
    from meta_magic.trace.trace import Trace

NO_TORCH = "%%meta needs PyTorch, which is not installed: run `pip install torch`"


class Run:
    """One run of a cell.

    Raises:
        UsageError: torch is not installed, or an option is not valid.
    """

    def __init__(self, magics: Any, options: Any, body: Body, cell: str) -> None:
        shell: Any = magics.shell
        self._shell = shell
        magics.is_recorded = True
        self._magics = magics
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
            "parameters": options.parameters,
        }
        namespace = shell.user_ns
        self.interrupts = make_interrupts()
        with self.interrupts, RARE_COLLECTION:  # imports leave no garbage
            self._progress = ProgressLine(
                lambda: self.recording.n_operators, is_kernel=is_notebook(self._shell)
            )
            self.recording, rerun = start_recording(body, options, namespace)
            if rerun is not None:
                rerun = replace(rerun, earlier=tuple(magics.history.cells))
            self._rerun = rerun
            self._before = find_before(options.diff, namespace)
        self._is_outermost = self._raw is not None and self._raw not in self._running
        if self._raw is not None and self._is_outermost:
            self._running[self._raw] = self._name

    def start(self) -> None:
        """Start the line of progress."""
        self._progress.start()

    def fail(self, error: BaseException) -> None:
        """Store the error of the cell, and trim its traceback."""
        self._error = error
        trim_traceback(self._shell, error, self._name)

    def finish(self) -> None:
        """Keep the trace and show it."""
        with RARE_COLLECTION.enter_idle():
            outputs = None
            try:
                if self._raw is not None and self._is_outermost:
                    self._running.pop(self._raw, None)
                trace = self._keep_trace()
                key = find_cell_id(self._shell) or self._raw or ""
                if self._error is not None:
                    self._show_failure(trace, key)
                elif not (self._options.quiet or self._options.teach):
                    settings = self._settings | self._compare(trace)
                    outputs = build_outputs(self._shell, trace, key, settings)
            finally:
                self._error = None
                self._progress.finish(None if outputs is None else outputs.bundle)
            if outputs is not None and outputs.live is not None:
                display(outputs.live)
            if self._options.teach and not self._options.quiet:
                lesson = trace.teach()
                bundle = {"text/plain": str(lesson), "text/html": lesson._repr_html_()}
                display(bundle, raw=True)
            if self._options.ranks is not None:
                try:
                    show_ranks(trace.record_ranks(self._options.ranks))
                except (ValueError, RuntimeError) as error:
                    raise UsageError(f"%%meta --ranks: {error}") from None

    def _compare(self, trace: "Trace") -> dict[str, Any]:
        """Return as a setting what differs from the trace that ``--diff`` names."""
        if self._before is None:
            return {}
        from meta_magic.designs.diff import diff  # noqa: PLC0415  needs torch

        return {"difference": diff(self._before, trace).describe()}

    def _show_failure(self, trace: "Trace", key: str) -> None:
        """Show why the cell failed; its recording is shown below the traceback."""
        from meta_magic.magic.reports import FailedCell  # noqa: PLC0415  torch

        settings = None if self._options.quiet else self._settings
        failed = FailedCell(self._shell, trace, key, settings)
        self._magics.failed.append(failed)
        failed.start(self._progress.finish)

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
    """Return a handler of interrupts, which wait while a thread starts or ends."""
    try:
        from meta_magic.torch_private.interrupts import Interrupts, uninterrupted  # noqa: PLC0415  needs torch
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise UsageError(NO_TORCH) from None
    uninterrupted(ProgressLine.start)
    uninterrupted(ProgressLine.show)
    uninterrupted(ProgressLine.finish)
    return Interrupts()


def start_recording(
    body: Body, options: Any, namespace: Mapping[str, object]
) -> tuple["Recording", "Rerun | None"]:
    """Return a new recording, and a record to repeat it, if that is possible."""
    from meta_magic.session.recording import Recording  # noqa: PLC0415  needs torch
    from meta_magic.trace.options import make_rerun  # noqa: PLC0415  as well

    chosen = read_options(options)
    rerun = make_rerun(
        text=body.text,
        file=body.name,
        of_module=namespace,
        variables=namespace,
        names=frozenset(body.names),
        options=chosen,
    )
    recording = Recording(body.name, options=chosen, namespace=namespace)
    return recording, rerun


def find_before(name: str | None, namespace: Mapping[str, object]) -> "Trace | None":
    """Return the trace that ``--diff`` names; None without that option."""
    if name is None:
        return None
    from meta_magic.trace.trace import Trace  # noqa: PLC0415  needs torch

    found = namespace.get("_meta" if name == "last" else name)
    if not isinstance(found, Trace):
        what = "nothing was recorded yet" if name == "last" else f"{name} is no trace"
        raise UsageError(f"%%meta --diff {name}: {what}")
    return found


def read_options(line: Any) -> "Options":
    """Return the options of a recording."""
    from meta_magic.session.record import record  # noqa: PLC0415  needs torch
    from meta_magic.torch_private.distributed import has_group  # noqa: PLC0415  as well
    from meta_magic.trace.world import read_ranks  # noqa: PLC0415  as well

    shared = ("as_device", "assume", "named", "check_values", "check", "world", "rank")
    given = {name: getattr(line, name) for name in (*shared, "per_node", "dims")}
    limits, cache = read_limits(line), not line.no_cache
    try:
        chosen = record(cache=cache, limits=limits, params=line.params, **given)
        world = chosen.options.world
        if line.ranks is not None and world is not None:
            read_ranks(line.ranks, world.size)
    except ValueError as error:
        raise UsageError(f"%%meta: {error}") from None
    if line.ranks is not None and world is None:
        raise UsageError("%%meta: --ranks needs --world: how many processes are there?")
    if world is not None and has_group():
        raise UsageError(
            "%%meta --world: this process is in a process group already: call "
            "torch.distributed.destroy_process_group() before"
        )
    return chosen.options._replace(is_check=line.is_check)


def read_limits(options: Any) -> "ValueLimits":
    """Return the limits of a value."""
    from meta_magic.trace.options import ValueLimits  # noqa: PLC0415  needs torch

    nbytes, flops = (
        None if number is None else int(number)
        for number in (options.value_nbytes, options.value_flops)
    )
    return ValueLimits(nbytes, flops, float(options.value_seconds))


FIRST_AFTER: Final = 1.0
EVERY: Final = 0.5


class ProgressLine:
    """Shows operators and seconds while a cell runs, from its second second on."""

    def __init__(self, count_operators: Callable[[], int], *, is_kernel: bool) -> None:
        self._count = count_operators
        self._is_kernel = is_kernel
        self._handle: Any = None
        self._done = threading.Event()
        self._lock = threading.Lock()
        self._value = ""
        self._started = time.perf_counter()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start the thread that shows it."""
        if self._is_kernel or sys.stderr.isatty():
            self._thread = threading.Thread(
                target=self._run, name="meta_magic progress", daemon=True
            )
            self._thread.start()
            OUTLETS.append(self.show)

    def show(self, text: str) -> None:
        """Show the progress of a value; "" shows operators and seconds again."""
        self._value = text
        if text:
            self._show()

    def finish(
        self, bundle: Mapping[str, str] | None, *, is_open: bool = False
    ) -> "DisplayHandle | None":
        """Stop, put ``bundle`` or nothing there; return the output if it can change."""
        if self._done.is_set():
            return None
        self._done.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None  # release it here, where interrupts wait
            OUTLETS.remove(self.show)
        if self._handle is not None:
            empty = {"text/plain": "", "text/html": ""}
            self._handle.update(dict(bundle or empty), raw=True)
        elif bundle is not None:
            self._handle = display(dict(bundle), raw=True, display_id=is_open or None)
        return self._handle

    def _run(self) -> None:
        if self._done.wait(FIRST_AFTER):
            return
        while True:
            self._show()
            if self._done.wait(EVERY):
                break
        if not self._is_kernel:
            write_to_terminal("")

    def _show(self) -> None:
        seconds = time.perf_counter() - self._started
        text = f"%%meta: {self._count():,} operators so far, {seconds:.0f} s"
        bundle = {"text/plain": self._value or text}
        with self._lock:
            if not self._is_kernel:
                write_to_terminal(bundle["text/plain"])
            elif self._handle is None:
                self._handle = display(bundle, raw=True, display_id=True)
            else:
                self._handle.update(bundle, raw=True)
