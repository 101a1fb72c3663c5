"""Run functions that may crash, hang or take too much in a child process.

Some kernels of torch end the process if sizes or positions do not fit. The child is
forked, so it has this process's memory, copied. Read ``ask_children`` first.
"""

import faulthandler
import gc
import os
import pickle
import select
import signal
import warnings
from collections import deque
from collections.abc import Callable, Generator, Iterable
from contextlib import ExitStack, suppress
from functools import partial
from io import BytesIO
from itertools import islice
from math import ceil, inf
from pathlib import Path
from time import monotonic
from typing import IO, Any, Final, NamedTuple, Self, TypeAlias

import torch

from meta_magic.torch_private.snapshot import fork

with suppress(ImportError):  # on Windows, which has no children either
    import resource


SECONDS: Final = 2
"""Seconds of processor time that a child may take."""

PATIENCE: Final = 6
"""Seconds to wait for a child that does not compute, as it hangs."""


Load: TypeAlias = Callable[[IO[bytes]], Any]
"""Reads what a child writes into its pipe."""


MOST_BYTES: Final = 1 << 30
"""Bytes of an answer."""


class NoAnswer(Exception):  # noqa: N818  no error: nothing is known
    """Raised in a child without an answer; the answer of a crashed or late child."""


NO_ANSWER: Final = NoAnswer()


def can_fork() -> bool:
    """Whether children can be made here: not on Windows, nor in every sandbox."""
    return hasattr(os, "fork")


def run_in_child(function: Callable[[], object]) -> Exception | None:
    """Run a function in a child process.

    Return its error, or None if it ran; ``NO_ANSWER`` if the child ended without
    answer, or cannot be made.
    """
    raised: Any = ask_child(partial(answer, function), SECONDS, PATIENCE)
    error: Exception | None = raised[0](raised[1]) if type(raised) is tuple else raised
    return error


def ask_child(function: Callable[[], Any], seconds: float, patience: float) -> Any:
    """Return the result of a function in a child, as :func:`ask_children` does."""
    return ask_children([function], seconds, patience)[0]


def ask_children(
    functions: Iterable[Callable[[], Any]],
    seconds: float,
    patience: float,
    at_once: int | None = None,
    load: Load = pickle.load,
) -> list[Any]:
    """Return the results of functions, each in a child of its own, at the same time.

    Args:
        functions: They return what can be pickled; their errors are lost.
        seconds: The processor time that each may take.
        patience: How long to wait for each that does not compute.
        at_once: How many children there are at most at a time; None for all.
        load: Reads a result, for functions that may write something else.

    Returns:
        The result of each, or ``NO_ANSWER``, as of :func:`run_in_child`.
    """
    with ExitStack() as stack:
        begun = (stack.enter_context(Child(one, seconds, load)) for one in functions)
        waiting = deque(islice(begun, at_once))
        answers = []
        while waiting:
            child = waiting.popleft()
            answers.append(child.read(patience))
            child.end()
            waiting += islice(begun, 1)
        return answers


def start_clock(most: float, seconds: float) -> Callable[[], float]:
    """Return a function that gives the processor time that is left.

    What this process takes counts, too. After ``seconds`` on the clock none is left,
    for code that sleeps; a busy machine has more.
    """
    before, end = sum(os.times()[:4]), monotonic() + seconds * measure_load()

    def find_rest() -> float:
        spent = sum(os.times()[:4]) - before
        return most - spent if monotonic() < end else 0.0

    return find_rest


def can_read(pipe: int, seconds: float) -> bool:
    """Wait so long, and return whether a pipe has something, or has ended."""
    poll = select.poll()  # select() itself takes no numbers over 1,023
    poll.register(pipe, select.POLLIN)
    return bool(poll.poll(seconds * 1000))


class Inbox(NamedTuple):
    """What the parent sends to a child's generator."""

    pipe: int

    def is_here(self, seconds: float) -> bool:
        """Wait so long, and return whether the parent has asked, or has ended."""
        return can_read(self.pipe, seconds)

    def read(self) -> Any:
        """Wait for the question, and return it.

        Raises:
            EOFError: The parent has ended.
        """
        with open(self.pipe, "rb", 0, closefd=False) as asked:
            return pickle.load(asked)  # noqa: S301  ours


class Child:
    """A process that runs a function; it is ended at the end of the context.

    Args:
        function: As in :func:`ask_children`; or a generator: it gets an ``Inbox``,
            and what it yields is read.
        seconds: As in :func:`ask_children`.
        load: As in :func:`ask_children`.
    """

    def __init__(
        self, function: Callable[[], Any], seconds: float, load: Load = pickle.load
    ) -> None:
        self._load = load
        self._number = 0
        self._is_over = False
        self._reader, writer = os.pipe()
        questions, self._asker = os.pipe()
        try:
            with warnings.catch_warnings():  # Python warns of fork with threads
                warnings.simplefilter("ignore")
                self._number = fork()
                if self._number == 0:
                    os.close(self._asker)  # so that questions end with the parent
                    end_with_answer(function, seconds, writer, questions)
        except Exception:  # noqa: BLE001, S110  no more processes, or a sandbox forbids it
            pass
        finally:
            os.close(writer)
            os.close(questions)

    def send(self, question: object) -> None:
        """Send something to the generator, which yields an answer to it."""
        with suppress(OSError), open(self._asker, "wb", closefd=False) as pipe:
            pickle.dump(question, pipe)

    def read(self, patience: float) -> Any:
        """Return the result of the function, or ``NO_ANSWER``."""
        if not self._number:
            return NO_ANSWER
        try:
            return read_answer(self._reader, patience, self._is_computing, self._load)
        except Exception:  # noqa: BLE001  it crashed, or there is no memory
            return NO_ANSWER

    def _is_computing(self) -> bool:
        """Whether the process runs, or would run if a processor were free."""
        text = Path(f"/proc/{self._number}/stat").read_text(encoding="utf-8")
        return text.rpartition(")")[2].split()[0] == "R"

    def is_done(self, seconds: float) -> bool:
        """Wait so long, and return whether there is an answer, or none will come."""
        return not self._number or can_read(self._reader, seconds)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.end()

    def end(self) -> None:
        """End the process, whatever it does; it has no answer afterwards."""
        if self._is_over:
            return
        self._is_over = True
        os.close(self._reader)
        os.close(self._asker)
        if self._number:  # unless the user's handler of SIGCHLD has waited for it
            with suppress(ProcessLookupError, ChildProcessError):
                kill(self._number)
                os.waitpid(self._number, 0)


def lead_group() -> None:
    """Let a child end with all its own children, and when its alarm rings, too."""
    os.setpgid(0, 0)
    signal.signal(signal.SIGALRM, lambda *_: kill(os.getpid()))


def kill(number: int) -> None:
    """End a process, and those of the group that it leads, without cleanup."""
    is_leader = os.getpgid(number) == number
    (os.killpg if is_leader else os.kill)(number, signal.SIGKILL)


def read_answer(
    reader: int, patience: float, is_computing: Callable[[], bool], load: Load
) -> Any:
    """Return the answer that a child writes into a pipe, and then ends.

    On a busy machine a child that waits for its own children has more time, too. What
    a child's function writes itself is read no longer than there is patience.
    """
    data, end = bytearray(), inf
    while monotonic() < end and len(data) < MOST_BYTES:
        seconds = patience * measure_load()
        if can_read(reader, seconds):
            end = min(end, monotonic() + seconds)
            part = os.read(reader, 1 << 20)
            data += part
            # Processes that a child has forked may keep the pipe open.
            if data.endswith(pickle.STOP) or not part:
                with suppress(EOFError, pickle.UnpicklingError):  # there is more of it
                    return load(BytesIO(data))
            if not part:
                return NO_ANSWER
        elif not is_computing():
            return NO_ANSWER
    return NO_ANSWER


def measure_load() -> float:
    """Return how many processes wait for each processor; at least 1."""
    return max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))


def end_with_answer(
    function: Callable[[], Any], seconds: float, writer: int, questions: int
) -> None:
    """Run a function, write its result, and end this process, the child."""
    try:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        faulthandler.disable()  # a crash is an answer; its report is not shown
        with suppress(ValueError):  # this process may have a lower limit
            resource.setrlimit(resource.RLIMIT_CPU, (ceil(seconds), ceil(seconds)))
            signal.signal(signal.SIGPROF, signal.SIG_DFL)  # it ends the process
            signal.setitimer(signal.ITIMER_PROF, seconds)
            # A limit of 1 byte: no core file, not even by a pipe.
            resource.setrlimit(resource.RLIMIT_CORE, (1, 1))
        with suppress(
            OSError
        ):  # if memory runs out, the kernel ends this process first
            Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")
        sink = os.open(os.devnull, os.O_WRONLY)
        os.dup2(sink, 1)
        os.dup2(sink, 2)
        torch.set_num_threads(1)  # the others are not in the child
        gc.freeze()  # what the parent made is never searched for garbage
        with suppress(NoAnswer), open(writer, "wb", closefd=False) as pipe:
            returned = function()
            if not isinstance(returned, Generator):
                pipe.write(pickle.dumps(returned))
                return
            answered = next(returned)
            while True:
                pipe.write(pickle.dumps(answered))
                pipe.flush()
                answered = returned.send(Inbox(questions))
    finally:
        kill(os.getpid())


def answer(function: Callable[[], object]) -> tuple[type[Any], str] | None:
    """Return type and text of a function's error; None if it ran."""
    try:
        function()
    except NoAnswer:
        raise
    except Exception as error:  # noqa: BLE001  it is the answer
        is_builtin = type(error).__module__ == "builtins"
        return type(error) if is_builtin else RuntimeError, str(error)
    return None
