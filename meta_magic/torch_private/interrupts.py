"""Have interrupts wait where they would leave torch, or what is written, half changed.

Python raises ``KeyboardInterrupt`` at almost any call. In the entry or the exit of a
context manager it leaves the context neither entered nor left; a generator that stands
for one goes on when its traceback is freed, and undoes what was put right meanwhile; a
callback of a weak reference, or ``__del__``, drops it; and what torch imports at first
use, such as sympy, is broken for good when its import is.
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

__all__ = ["Interrupts", "must_wait", "put_back", "unbroken"]

Handler: TypeAlias = Callable[[int, FrameType | None], Any]
Function = TypeVar("Function", bound=Callable[..., Any])

RETRY_SECONDS: Final = 0.001
TORCH: Final = f"{Path(torch.__file__).parent}/"
PLACES: Final = (TORCH, f"{Path(__file__).parents[1]}/", warnings.__file__)
"""Where the context managers are that change what each operator does, and who imports
what it needs when it is needed."""

WEAK: Final = frozenset(
    {weakref.__file__, _weakrefset.__file__, f"{TORCH}utils/weak.py"}
)
"""Files whose functions are callbacks of weak references."""

ENTRIES: Final = frozenset({"__enter__", "__exit__"})

IMPORTS: Final = ("<frozen importlib.", importlib.__file__)
"""Files of the functions that import."""

unbroken_codes: set[CodeType] = set()


def unbroken(function: Function) -> Function:
    """Have interrupts wait until a function has ended: a decorator that costs nothing.

    For what would leave records half written. What it calls is waited for as well.
    """
    unbroken_codes.add(function.__code__)
    return function


def must_wait(frame: FrameType | None) -> bool:
    """Whether an interrupt that landed in a frame would break what runs."""
    is_importing = False
    while frame is not None:
        code = frame.f_code
        file, name = code.co_filename, code.co_name
        if code in unbroken_codes or file in WEAK or name == "__del__":
            return True
        if name in ENTRIES:
            if file == contextlib.__file__:  # of a generator: the user's is his affair
                generator = getattr(frame.f_locals.get("self"), "gen", None)
                file = "" if generator is None else generator.gi_code.co_filename
            if file.startswith(PLACES):
                return True
        if is_importing and file.startswith(PLACES):
            return True
        is_importing = file.startswith(IMPORTS)
        frame = frame.f_back
    return False


def put_back(handle: Handler, handler: Handler) -> None:
    """Have interrupts go where they went before, at the end of who took them.

    Cells that await may end in any order: another one may have taken them since.

    Args:
        handle: Where they go now.
        handler: Where they went before.
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

    As a context manager, or by its two methods.

    Args:
        waits: Whether one that landed in a frame must wait.

    Attributes:
        is_held: Whether each waits, wherever it lands.
        pending: The numbers of those that wait; whoever sends one again takes it out.
        handler: Where they go if they need not wait; None if they are not owned.
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
        """Have them come here."""
        self.pending.clear()
        if threading.current_thread() is not threading.main_thread():
            return
        handler = signal.getsignal(signal.SIGINT)
        if callable(handler):
            self.handler = handler
            signal.signal(signal.SIGINT, self._handle)

    def give_back(self) -> None:
        """Have them go where they went before, the one that waits first."""
        handler, self.handler = self.handler, None
        if handler is None:
            return
        put_back(self._handle, handler)
        if self.pending:
            number = self.pending[0]
            self.pending.clear()
            handler(number, None)  # where it landed does not matter any more

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if not self.is_held and not self._waits(frame):
            self.handler(number, frame)
            return
        self.pending.append(number)
        if not self.is_held:
            again = threading.Timer(RETRY_SECONDS, self._come_again)
            again.name = "meta_magic interrupt"
            again.start()

    def _come_again(self) -> None:
        """Send one that waits once more, unless it was sent meanwhile."""
        with contextlib.suppress(IndexError):
            signal.raise_signal(self.pending.pop())
