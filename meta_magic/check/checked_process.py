"""Run one subject in a child process, with a time limit.

A script may call ``os._exit``, crash or never end; the command still reports it. Read
:func:`check_subject` for the parent, which imports no torch, and :func:`main` for the
child. The child sends results to its original standard output; what the program prints
goes to standard error.
"""

import atexit
import os
import pickle
import signal
import subprocess
import sys
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from pathlib import Path
from threading import Thread
from typing import IO, Any, Final, NamedTuple, TypeAlias, cast

from meta_magic.check.records import BlockResult, Request, Verdict, make_unchecked
from meta_magic.errors import CheckError
from meta_magic.trace.progress import OUTLETS

with suppress(ImportError):  # on Windows
    import resource


END: Final = "end"
"""The last object that a child sends."""

MAX_OUTPUT: Final = 40
"""Lines of the program's own output that are kept."""

MAX_LINE: Final = 400

HOME: Final = str(Path(__file__).parents[2])
"""The folder that holds this package. The child does not search the current folder
(``-P``): only the program that it runs may do that."""

CODE: Final = (
    f"import sys; sys.path.append({HOME!r}); "
    "from meta_magic.check.checked_process import main; main()"
)

Show: TypeAlias = Callable[[str], None]


class Progress(NamedTuple):
    """A line that a child sends while a value takes long; "" removes it."""

    text: str


def check_subject(request: Request, show: Show, *, is_verbose: bool = False) -> Verdict:
    """Run a subject in a child process, and return its verdict.

    Args:
        request: What to run, and how.
        show: Shows the progress of a value that takes long to compute.
        is_verbose: Whether the program's output is shown at once.
    """
    started = time.monotonic()
    parts: list[Any] = []
    tail: deque[str] = deque(maxlen=MAX_OUTPUT)
    with start_child(request, is_verbose=is_verbose) as child:
        is_late = collect(child, request, parts, tail, show)
        code = child.wait()
    seconds = time.monotonic() - started
    if END in parts:
        parts.remove(END)
    else:
        parts.append(make_unchecked(describe_end(request, code, is_late=is_late)))
    name = request.subject.name
    return Verdict(name=name, parts=(*parts,), output="".join(tail), seconds=seconds)


@contextmanager
def start_child(request: Request, *, is_verbose: bool) -> Iterator[Any]:
    """Start a child and send it the request; at the end kill it and its children."""
    child = subprocess.Popen(  # noqa: S603  ourselves
        [sys.executable, "-P", "-c", CODE],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=None if is_verbose else subprocess.PIPE,
        env={"MPLBACKEND": "Agg", **os.environ},  # plt.show() must not wait
        start_new_session=True,
    )
    try:
        with suppress(BrokenPipeError), cast("IO[bytes]", child.stdin) as line:
            pickle.dump(request, line)
        yield child
    finally:
        end_group(child)
        child.wait()


def collect(
    child: Any, request: Request, parts: list[Any], tail: deque[str], show: Show
) -> bool:
    """Read what a child sends, up to its end or the time limit.

    Returns:
        Whether it reached the time limit.
    """
    readers = [Thread(target=read_parts, args=(child.stdout, parts, show), daemon=True)]
    if child.stderr is not None:
        last = Thread(target=read_output, args=(child.stderr, tail), daemon=True)
        readers.append(last)
    for reader in readers:
        reader.start()
    readers[0].join(request.seconds)
    is_late = readers[0].is_alive()
    if is_late:
        if hasattr(os, "killpg"):  # not on Windows
            child.send_signal(signal.SIGINT)  # it then sends its recording so far
        readers[0].join(request.grace)
    with suppress(subprocess.TimeoutExpired):
        child.wait(request.grace if END in parts or not is_late else 0)
    end_group(child)
    for reader in readers:
        reader.join(1)
    return is_late


def read_parts(stream: IO[bytes], parts: list[Any], show: Show) -> None:
    """Read what a child sends, up to ``END`` or its exit."""
    with stream, suppress(EOFError, pickle.UnpicklingError):
        while not parts or parts[-1] != END:
            sent = pickle.load(stream)  # noqa: S301  our own child's
            if isinstance(sent, Progress):
                show(sent.text)
            else:
                parts.append(sent)


def read_output(stream: IO[bytes], tail: deque[str]) -> None:
    """Keep the last lines that a program prints."""
    with stream:
        while line := stream.readline(MAX_LINE):
            tail.append(line.decode(errors="replace"))


def end_group(child: Any) -> None:
    """Kill a child and all processes that it started."""
    with suppress(ProcessLookupError, PermissionError):
        if hasattr(os, "killpg"):
            os.killpg(child.pid, signal.SIGKILL)
        else:
            child.kill()


def describe_end(request: Request, code: int, *, is_late: bool) -> str:
    """Return why a child ended without sending ``END``."""
    if is_late:
        return f"it took more than {request.seconds:g} s (--timeout)"
    if code < 0:
        with suppress(ValueError):
            name = signal.Signals(-code).name
            is_full = ", as the system ends one when memory is short (see --memory)"
            return f"its process ended by {name}{is_full if name == 'SIGKILL' else ''}"
    return f"it ended its process at once, with exit code {code}"


def main() -> None:
    """Run the subject that the standard input names, and send its parts."""
    from meta_magic.check.judging import find_lacking_resource  # noqa: PLC0415  torch

    atexit.register(leave)  # handlers run in reverse: the first one runs last
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a job may ignore it
    results = take_output()
    request: Request = pickle.load(sys.stdin.buffer)  # noqa: S301  our own parent's
    limit_memory(request.nbytes)
    OUTLETS.append(lambda text: send(results, Progress(text)))
    try:
        for part in run_subject(request):
            send(results, part)
    except CheckError as error:
        send(results, make_unchecked(str(error)))
    except Exception as error:  # noqa: BLE001  ours: the program's own are in its part
        reason = find_lacking_resource(error, request.nbytes)
        if reason is None:
            traceback.print_exc()
            reason = f"the check itself failed ({type(error).__name__}: {error})"
        send(results, make_unchecked(reason))
    send(results, END)


def limit_memory(nbytes: int | None) -> None:
    """Limit the memory of this process; only Linux obeys this limit."""
    if nbytes is not None and sys.platform == "linux":
        _, most = resource.getrlimit(resource.RLIMIT_DATA)
        allowed = nbytes if most == resource.RLIM_INFINITY else min(nbytes, most)
        resource.setrlimit(resource.RLIMIT_DATA, (allowed, most))


def leave() -> None:
    """End this process at once: a regular exit of torch takes half a second.

    It exits with 1 if an exception ended the program, which the interpreter keeps.
    """
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(int(hasattr(sys, "last_value")))


def take_output() -> IO[bytes]:
    """Return the stream for results; redirect standard output to standard error."""
    results = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    return results


def send(results: IO[bytes], sent: object) -> None:
    """Send a part, a line of progress or the end."""
    pickle.dump(sent, results)
    results.flush()


def run_subject(request: Request) -> Iterator[BlockResult]:
    """Run a subject; yield its parts as they are done."""
    if request.subject.kind == "notebook":  # imports IPython, which no other needs
        from meta_magic.check.block_run import run_notebook as run  # noqa: PLC0415
    elif request.subject.kind == "function":
        from meta_magic.check.block_run import run_function as run  # noqa: PLC0415
    else:
        from meta_magic.check.block_run import run_script as run  # noqa: PLC0415
    # A sandbox replaces both by streams that refuse writes; they are needed afterwards.
    with redirect_stdout(sys.stdout), redirect_stderr(sys.stderr):
        yield from run(request)
