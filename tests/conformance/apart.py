"""Run a function in a child process: what it does may end that process."""

import os
import pickle
import resource
import signal
import time
from collections.abc import Callable
from typing import Any


class Crashed(RuntimeError):
    """The child ended without an answer, or its function failed."""


def run_apart(function: Callable[[], Any], seconds: int = 600) -> Any:
    """Return what a function returns in a forked child.

    Args:
        function: What it returns can be pickled.
        seconds: Of a core's time that it may take.

    Raises:
        Crashed: It raised, took longer, or the child died.
    """
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        answer(function, writer, seconds)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        data = pipe.read()
    _, status = os.waitpid(child, 0)
    if not data:
        raise Crashed(f"status {status}")
    error, returned = pickle.loads(data)
    if error:
        raise Crashed(error)
    return returned


def answer(function: Callable[[], Any], writer: int, seconds: int) -> None:
    """Write what a function returned or raised, and end this process, the child."""
    try:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        spent = int(time.process_time())
        resource.setrlimit(resource.RLIMIT_CPU, (spent + seconds, spent + seconds))
        signal.alarm(10 * seconds)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        try:
            data = pickle.dumps(("", function()))
        except Exception as error:
            data = pickle.dumps((f"{type(error).__name__}: {error}", None))
        with os.fdopen(writer, "wb") as pipe:
            pipe.write(data)
    finally:
        os._exit(0)
