"""What runs in the child: the subject, under a recording."""

import atexit
import os
import pickle
import signal
import sys
import traceback
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout, suppress
from typing import IO

from meta_magic.check.checked_process import END, Progress
from meta_magic.check.lacking import find_lacking
from meta_magic.check.verdicts import Finding, Part, Request
from meta_magic.errors import CheckError
from meta_magic.replaying.value_progress import OUTLETS

with suppress(ImportError):  # on Windows
    import resource

__all__ = ["main"]


def main() -> None:
    """Run the subject that the standard input names, and send what came of it."""
    atexit.register(leave)  # the first one registered is the last one that runs
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a job may ignore it
    results = take_output()
    request: Request = pickle.load(sys.stdin.buffer)  # noqa: S301  our own parent's
    limit_memory(request.nbytes)
    OUTLETS.append(lambda text: send(results, Progress(text)))
    try:
        for part in run_subject(request):
            send(results, part)
    except CheckError as error:
        send(results, say_unchecked(str(error)))
    except Exception as error:  # noqa: BLE001  ours: the program's own are in its part
        reason = find_lacking(error, request.nbytes)
        if reason is None:
            traceback.print_exc()
            reason = f"the check itself failed ({type(error).__name__}: {error})"
        send(results, say_unchecked(reason))
    send(results, END)


def limit_memory(nbytes: int | None) -> None:
    """Have memory refused beyond a number of bytes; on Linux, others do not heed it."""
    if nbytes is not None and sys.platform == "linux":
        _, most = resource.getrlimit(resource.RLIMIT_DATA)
        allowed = nbytes if most == resource.RLIM_INFINITY else min(nbytes, most)
        resource.setrlimit(resource.RLIMIT_DATA, (allowed, most))


def say_unchecked(reason: str) -> Part:
    """Return what is said of what cannot be checked."""
    finding = Finding(rule="unchecked", level="warning", text=reason)
    return Part(outcome="unchecked", findings=(finding,))


def leave() -> None:
    """End this process at once: to take torch down takes half a second."""
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(int(hasattr(sys, "last_value")))


def take_output() -> IO[bytes]:
    """Return where results go; what the program prints goes where its errors go."""
    results = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    return results


def send(results: IO[bytes], word: object) -> None:
    """Send a part, or the last word."""
    pickle.dump(word, results)
    results.flush()


def run_subject(request: Request) -> Iterator[Part]:
    """Run a subject; yield its parts as they are done.

    Raises:
        CheckError: It cannot be run.
    """
    # Each kind for itself: no script needs IPython, and all need torch.
    if request.subject.kind == "notebook":
        from meta_magic.check.notebook_run import run_notebook  # noqa: PLC0415

        run = run_notebook
    elif request.subject.kind == "function":
        from meta_magic.check.function_run import run_function  # noqa: PLC0415

        run = run_function
    else:
        from meta_magic.check.script_run import run_script  # noqa: PLC0415

        run = run_script
    # A sandbox closes both; our own words are written after it.
    with redirect_stdout(sys.stdout), redirect_stderr(sys.stderr):
        yield from run(request)
