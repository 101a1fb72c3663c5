"""Delay interrupts that would leave torch, or a recording, half changed.

Python raises ``KeyboardInterrupt`` at almost any call: a context manager would be
neither entered nor left; a generator that implements it would undo later what was
restored; a callback of a weak reference, or ``__del__``, drops the interrupt; a module
that torch imports at first use is broken for good. Read ``Interrupts`` first.
"""

import _weakrefset
import contextlib
import importlib
import signal
import threading
import warnings
import weakref
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Final, TypeAlias, TypeVar

import torch

Handler: TypeAlias = Callable[[int, FrameType | None], Any]
Function = TypeVar("Function", bound=Callable[..., Any])

RETRY_SECONDS: Final = 0.001
TORCH: Final = f"{Path(torch.__file__).parent}/"

# Prefixes of files whose context managers change operators, or that import late.
UNSAFE: Final = (TORCH, f"{Path(__file__).parents[1]}/", warnings.__file__)

# Files whose functions are callbacks of weak references.
WEAK: Final = frozenset(
    {weakref.__file__, _weakrefset.__file__, f"{TORCH}utils/weak.py"}
)

REMOVERS: Final = f"{TORCH}_dynamo/utils.py", ("<lambda>", "_remove_id")
"""A file, and those of its functions that are such callbacks."""

ENTRIES: Final = frozenset({"__enter__", "__exit__"})

# Files of the functions that import.
IMPORTS: Final = ("<frozen importlib.", importlib.__file__)

unbroken_codes: set[CodeType] = set()


def uninterrupted(function: Function) -> Function:
    """Delay interrupts until a function, and all it calls, has ended.

    For functions that would leave records half written. The decorator costs nothing at
    a call: the function's code is looked up when an interrupt comes.
    """
    unbroken_codes.add(function.__code__)
    return function


def must_wait(frame: FrameType | None) -> bool:
    """Whether an interrupt in a frame would break what runs."""
    is_importing = False
    while frame is not None:
        code = frame.f_code
        file, name = code.co_filename, code.co_name
        if code in unbroken_codes or file in WEAK or name == "__del__":
            return True
        if file == REMOVERS[0] and name in REMOVERS[1]:
            return True
        if name in ENTRIES:
            if file == contextlib.__file__:  # of a generator, perhaps the user's own
                generator = getattr(frame.f_locals.get("self"), "gen", None)
                file = "" if generator is None else generator.gi_code.co_filename
            if file.startswith(UNSAFE):
                return True
        if is_importing and file.startswith(UNSAFE):
            return True
        is_importing = file.startswith(IMPORTS)
        frame = frame.f_back
    return False


def put_back(handle: Handler, handler: Handler) -> None:
    """Replace the handler ``handle`` by the one before it, at the end of its owner.

    Cells that await may end in any order: another one may own interrupts by now.
    """
    now = signal.getsignal(signal.SIGINT)
    if now == handle:
        signal.signal(signal.SIGINT, handler)
    while isinstance(owner := getattr(now, "__self__", None), Interrupts):
        if owner.handler == handle:
            owner.handler = handler
        now = owner.handler


class Interrupts:
    """Owns the handler of interrupts for a while; on the main thread alone.

    Use it as a context manager, or by ``own`` and ``give_back``.

    Attributes:
        is_held: Whether every interrupt waits, whatever runs.
        pending: The signal numbers that wait; whoever raises one again removes it.
    """

    def __init__(self, waits: Callable[[FrameType | None], bool] = must_wait) -> None:
        self.is_held = False
        self.pending: list[int] = []
        self._waits = waits
        self.handler: Any = None

    def __enter__(self) -> None:
        self.own()

    def __exit__(self, *_: object) -> None:
        self.give_back()

    def own(self) -> None:
        """Handle interrupts from now on."""
        self.pending.clear()
        if threading.current_thread() is not threading.main_thread():
            return
        handler = signal.getsignal(signal.SIGINT)
        if callable(handler):
            self.handler = handler
            signal.signal(signal.SIGINT, self._handle)

    def give_back(self) -> None:
        """Restore the handler before, and give it the first interrupt that waits."""
        handler, self.handler = self.handler, None
        if handler is None:
            return
        put_back(self._handle, handler)
        if self.pending:
            number = self.pending[0]
            self.pending.clear()
            handler(number, None)  # its frame does not matter any more

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if not self.is_held and not self._waits(frame):
            self.handler(number, frame)
            return
        self.pending.append(number)
        if not self.is_held:
            again = threading.Timer(RETRY_SECONDS, self._raise_pending)
            again.name = "meta_magic interrupt"
            again.start()

    def _raise_pending(self) -> None:
        # Nothing is pending if another timer raised it meanwhile.
        with contextlib.suppress(IndexError):
            signal.raise_signal(self.pending.pop())
