"""Leave torch and the interrupt handler exactly as they were, however a block ends.

``with torch.device("meta")`` alone is not safe: half of the interrupts that land in its
enter or exit leave the process in meta, and a mode that the block forgot to leave makes
the exit pop the wrong one. So everything is noted before, restored by identity after,
and an interrupt is delivered only while the block itself runs.
"""

import signal
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from types import FrameType
from typing import Any, Final, TypeVar

from meta_magic.torch_private.snapshot import Snapshot

__all__ = ["Guard"]

T = TypeVar("T")

RETRY_SECONDS: Final = 0.001


class Guard:
    """Enter context managers around a block, and leave no trace of them.

    Args:
        contexts: Entered in order, left in reverse.
        entry_points: Functions of other files that call :meth:`enter` or
            :meth:`leave`; an interrupt that lands in their own frame waits, too.

    Attributes:
        odd: What had to be put right afterwards, in words.
    """

    def __init__(
        self,
        contexts: Sequence[AbstractContextManager[Any]],
        entry_points: Sequence[Callable[..., Any]] = (),
    ) -> None:
        ours = (Guard.run, Guard.enter, Guard.leave, *entry_points)
        self._own_codes = {function.__code__ for function in ours}
        self.odd: list[str] = []
        self._contexts = contexts
        self._entered: list[AbstractContextManager[Any]] = []
        self._snapshot: Snapshot | None = None
        self._is_in_block = False
        self._pending: tuple[int, FrameType | None] | None = None
        self._old_handler: Any = None

    def run(self, block: Callable[[], T]) -> T:
        """Run ``block`` inside the contexts; can be called again."""
        __tracebackhide__ = True
        self.enter()
        try:
            return block()
        finally:
            self.leave()

    def enter(self) -> None:
        """Enter all contexts; on any failure or interrupt none stays entered."""
        self._pending, self._entered = None, []
        self._snapshot = Snapshot()
        try:
            self._own_interrupts()
            for context in self._contexts:
                context.__enter__()
                self._entered.append(context)
        except BaseException:
            self.leave()
            raise
        if self._was_interrupted():
            self.leave()  # delivers it
        self._is_in_block = True

    def leave(self) -> None:
        """Leave all contexts, restore, then deliver an interrupt that came."""
        # A plain store: Python looks for signals at calls and jumps only.
        self._is_in_block = False
        if self._snapshot is not None:
            for text in self._snapshot.describe_left_open(self._contexts):
                self._note(text)
        while self._entered:
            context = self._entered.pop()
            try:  # each on its own: one that fails must not keep the others entered
                context.__exit__(None, None, None)
            except Exception as error:  # noqa: BLE001  the snapshot is authoritative
                self._note(f"{type(context).__name__} was not left cleanly: {error}")
        if self._snapshot is not None:
            for text in self._snapshot.restore():
                self._note(text)
        self._return_interrupts()

    def _was_interrupted(self) -> bool:
        return self._pending is not None

    def _note(self, text: str) -> None:
        if text not in self.odd:
            self.odd.append(text)

    def _own_interrupts(self) -> None:
        if threading.current_thread() is not threading.main_thread():
            return
        handler = signal.getsignal(signal.SIGINT)
        if callable(handler):
            self._old_handler = handler
            signal.signal(signal.SIGINT, self._handle)

    def _return_interrupts(self) -> None:
        handler, self._old_handler = self._old_handler, None
        if handler is None:
            return
        if signal.getsignal(signal.SIGINT) == self._handle:
            signal.signal(signal.SIGINT, handler)
        if self._pending is not None:
            pending, self._pending = self._pending, None
            handler(*pending)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if not self._is_in_block:
            self._pending = (number, frame)
        elif frame is not None and frame.f_code in self._own_codes:
            # On the way into or out of the block: come again in a moment.
            again = threading.Timer(RETRY_SECONDS, signal.raise_signal, (number,))
            again.name = "meta_magic interrupt"
            again.start()
        else:
            self._old_handler(number, frame)
