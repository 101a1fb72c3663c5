"""Run the cells of a notebook or script in a process of its own, within limits."""

import contextlib
import io
import os
import random
import resource
import shutil
import signal
import socket
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator, Sequence
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from IPython.core.displaypub import CapturingDisplayPublisher
from IPython.core.interactiveshell import InteractiveShell
from traitlets.config import Config

from tests.conformance.script_cells import record

FORK = get_context("fork")
LATE, CRASHED = "late", "the process died"
MAX_TEXT = 1_000_000
PATIENCE = 10
"""How many times as long a cell may wait."""


class Limits(NamedTuple):
    """What one run may take.

    Attributes:
        seconds: Of each cell, of a core's time: other programs slow nothing down.
        nbytes: Of the process's address space.
    """

    seconds: float
    nbytes: int


class Script(NamedTuple):
    """A notebook or a script.

    Attributes:
        root: The folder that is copied, so that no run meets the files of another.
        path: The file below it.
        cells: Its cells.
    """

    root: Path
    path: Path
    cells: tuple[str, ...]


class Outcome(NamedTuple):
    """What came of a cell.

    Attributes:
        error: Type and message of what ended it, "" if nothing did.
        place: Where it was raised: the innermost line of the cell and that of all.
        text: What it printed.
        seconds: How long it took a core.
        n_operators: How many operators were recorded.
    """

    error: str
    place: str
    text: str
    seconds: float
    n_operators: int = 0


def run_cells(script: Script, limits: Limits, *, recorded: bool) -> list[Outcome]:
    """Run cells one after another, up to one that takes too long or ends the process.

    Args:
        script: The notebook or script.
        limits: What it may take.
        recorded: Put ``%%meta`` in front of each cell.
    """
    here, there = FORK.Pipe(duplex=False)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        process = FORK.Process(
            target=answer, args=(there, script, limits, Path(folder), recorded)
        )
        process.start()
        there.close()
        try:
            return list(receive(here, process, len(script.cells), limits.seconds))
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.kill()
            process.join()
            here.close()


def receive(
    here: Connection, process: BaseProcess, n_cells: int, seconds: float
) -> Iterator[Outcome]:
    """Yield outcomes as they come, at last that no more will come."""
    for n_received in range(n_cells + 1):
        if not here.poll(PATIENCE * seconds + PATIENCE):
            yield Outcome(LATE, "", "", seconds)
            return
        try:
            outcome = here.recv()
        except EOFError:
            process.join()
            is_late = process.exitcode == -signal.SIGPROF
            yield Outcome(LATE if is_late else CRASHED, "", "", seconds * is_late)
            return
        if n_received:  # the first is that of the shell
            yield outcome


def answer(
    there: Connection, script: Script, limits: Limits, folder: Path, recorded: bool
) -> None:
    """Send what came of each cell."""
    os.setsid()
    copied = folder / "copy"
    shutil.copytree(script.root, copied, symlinks=True, ignore_dangling_symlinks=True)
    shell = enter(copied / script.path.relative_to(script.root), limits)
    if recorded:
        shell.run_line_magic("load_ext", "meta_magic")
    there.send(None)
    for cell in script.cells:
        signal.setitimer(signal.ITIMER_PROF, limits.seconds)  # ends the process
        there.send(run_cell(shell, record(cell) if recorded else cell))
    there.close()
    os._exit(0)  # what the script registered for its end would only cost time


def enter(path: Path, limits: Limits) -> InteractiveShell:
    """Make this process one in which a script was just started."""
    devnull = os.open(os.devnull, os.O_RDWR)
    os.dup2(devnull, 0)
    os.dup2(devnull, 2)
    resource.setrlimit(resource.RLIMIT_AS, (limits.nbytes, limits.nbytes))
    os.chdir(path.parent)
    sys.path.insert(0, str(path.parent))
    sys.argv = [path.name]
    socket.getaddrinfo = refuse_network
    torch.set_num_threads(1)
    torch.manual_seed(0)
    np.random.seed(0)  # noqa: NPY002  what scripts use
    random.seed(0)
    config = Config()
    config.HistoryAccessor.enabled = False
    config.InteractiveShell.colors = "NoColor"
    InteractiveShell.clear_instance()
    shell = InteractiveShell.instance(
        config=config, display_pub_class=CapturingDisplayPublisher
    )
    shell.showtraceback = shell.showsyntaxerror = lambda *_, **__: None
    shell.user_ns["__file__"] = str(path)
    return shell


def refuse_network(host: object, *_: object, **__: object) -> Sequence[object]:
    """Stand in for ``socket.getaddrinfo``: nothing is fetched."""
    raise OSError(f"a sweep asks no network, not {host!r} either")


def run_cell(shell: InteractiveShell, cell: str) -> Outcome:
    """Run one cell."""
    shell.user_ns.pop("_meta", None)
    begin = time.process_time()
    with contextlib.redirect_stdout(io.StringIO()) as out:
        result = shell.run_cell(cell, store_history=True)
    seconds = time.process_time() - begin
    shell.display_pub.outputs.clear()
    trace = shell.user_ns.get("_meta")
    return Outcome(
        *describe_error(result.error_before_exec or result.error_in_exec),
        text=out.getvalue()[:MAX_TEXT],
        seconds=seconds,
        n_operators=0 if trace is None else len(trace.ops),
    )


def describe_error(error: BaseException | None) -> tuple[str, str]:
    """Return an error's type and message, and its place."""
    if error is None:
        return "", ""
    message = " ".join(f"{type(error).__name__}: {error}".split())
    return message[:600], find_place(error)


def find_place(error: BaseException) -> str:
    """Return the innermost line of the cell that an error passed, and of all."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [f for f in frames if f.filename.startswith(("<ipython", "/tmp/ipykernel"))]
    lines = [f"{f.lineno}: {f.line}" for f in own[-1:]]
    deepest = [f"{Path(f.filename).name}:{f.lineno}" for f in frames[-1:]]
    return " | ".join(lines + deepest)
