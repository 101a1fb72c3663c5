"""Run one subject in a child: within its time, and whatever it does to its process."""

import os
import pickle
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Thread
from typing import IO, Any, Final, NamedTuple, TypeAlias, cast

from meta_magic.check.verdicts import Finding, Part, Request, Verdict

__all__ = ["END", "Progress", "check_subject", "refuse_subject"]

END: Final = "end"
"""What a child sends last."""

GRACE: Final = 10.0
"""Seconds that a child has to say how far it came, and to leave."""

MAX_OUTPUT: Final = 40
"""Lines of the program's own output that are kept."""

MAX_LINE: Final = 400

HOME: Final = str(Path(__file__).parents[2])
"""Where this package lies. A child does not look into the current folder for modules:
that is up to what it runs."""

CODE: Final = (
    f"import sys; sys.path.append({HOME!r}); "
    "from meta_magic.check.worker import main; main()"
)

Show: TypeAlias = Callable[[str], None]


class Progress(NamedTuple):
    """A line that a child sends while a value takes long; "" removes it."""

    text: str


def check_subject(request: Request, show: Show, *, is_verbose: bool = False) -> Verdict:
    """Run a subject in a child, and return what came of it.

    Args:
        request: What to run, and how.
        show: Shows how far a value is that takes long to compute.
        is_verbose: Whether its output is shown as it comes.
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
        reason = describe_end(request, code, is_late=is_late)
        finding = Finding(rule="unchecked", level="warning", text=reason)
        parts.append(Part(outcome="unchecked", findings=(finding,)))
    name = request.subject.name
    return Verdict(name=name, parts=(*parts,), output="".join(tail), seconds=seconds)


def refuse_subject(name: str, reason: str) -> Verdict:
    """Return the verdict on what cannot be run at all."""
    finding = Finding(rule="unchecked", level="warning", text=reason)
    part = Part(outcome="unchecked", findings=(finding,))
    return Verdict(name=name, parts=(part,))


@contextmanager
def start_child(request: Request, *, is_verbose: bool) -> Iterator[Any]:
    """Have a child that was told what to do, and leave none of its processes alive."""
    child = subprocess.Popen(  # noqa: S603  ourselves
        [sys.executable, "-P", "-c", CODE],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=None if is_verbose else subprocess.PIPE,
        env={"MPLBACKEND": "Agg", **os.environ},  # no window that waits to be closed
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
    """Read what a child sends until it has ended, or its time has.

    Returns:
        Whether it was late.
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
            child.send_signal(signal.SIGINT)  # so that it says how far it came
        readers[0].join(GRACE)
    with suppress(subprocess.TimeoutExpired):
        child.wait(GRACE if END in parts or not is_late else 0)
    end_group(child)
    for reader in readers:
        reader.join(1)
    return is_late


def read_parts(stream: IO[bytes], parts: list[Any], show: Show) -> None:
    """Read what a child sends, up to its last word or its end."""
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
    """End a child and all that it started, if they are there."""
    with suppress(ProcessLookupError, PermissionError):
        if hasattr(os, "killpg"):
            os.killpg(child.pid, signal.SIGKILL)
        else:
            child.kill()


def describe_end(request: Request, code: int, *, is_late: bool) -> str:
    """Return why a child ended without its last word."""
    if is_late:
        return f"it took more than {request.seconds:g} s (--timeout)"
    if code < 0:
        with suppress(ValueError):
            return f"its process ended by {signal.Signals(-code).name}"
    return f"it ended its process at once, with exit code {code}"
