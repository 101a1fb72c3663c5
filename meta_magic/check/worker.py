"""The entry point of the child process: run one subject and send its parts.

Results go to the original standard output; what the program prints goes to standard
error. Read :func:`main` first.
"""

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
from meta_magic.check.judging import find_lacking_resource
from meta_magic.check.records import Part, Request, make_unchecked
from meta_magic.errors import CheckError
from meta_magic.trace.progress import OUTLETS

with suppress(ImportError):  # on Windows
    import resource


def main() -> None:
    """Run the subject that the standard input names, and send its parts."""
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
    """End this process at once: a regular exit of torch takes half a second."""
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


def run_subject(request: Request) -> Iterator[Part]:
    """Run a subject; yield its parts as they are done."""
    if request.subject.kind == "notebook":  # imports IPython, which no other needs
        from meta_magic.check.notebook_run import run_notebook as run  # noqa: PLC0415
    elif request.subject.kind == "function":
        from meta_magic.check.block_run import run_function as run  # noqa: PLC0415
    else:
        from meta_magic.check.block_run import run_script as run  # noqa: PLC0415
    # A sandbox refuses to write to both; this process writes to them afterwards.
    with redirect_stdout(sys.stdout), redirect_stderr(sys.stderr):
        yield from run(request)
