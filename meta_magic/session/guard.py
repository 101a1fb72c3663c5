"""Leave torch and the interrupt handler exactly as they were, however a block ends.

``with torch.device("meta")`` alone is not safe: half of the interrupts that arrive in
its enter or exit leave the process on meta, and a mode that the block forgot to leave
makes the exit pop the wrong one. So ``Guard`` takes a snapshot of torch, restores it
after the block, and delivers an interrupt only while the block itself runs.
"""

import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from types import FrameType
from typing import Any, TypeVar

import torch

from meta_magic.torch_private.interrupts import Interrupts, must_wait, uninterrupted
from meta_magic.torch_private.snapshot import Snapshot

T = TypeVar("T")


class Guard:
    """Enter context managers around a block, and leave no trace of them.

    An interrupt in a frame of ``entry_points``, functions that enter or leave, waits.
    """

    def __init__(
        self,
        contexts: Sequence[AbstractContextManager[Any]],
        entry_points: Sequence[Callable[..., Any]] = (),
    ) -> None:
        ours = (Guard.run, Guard.run_part, Guard.enter, Guard.leave, *entry_points)
        self._own_codes = {function.__code__ for function in ours}
        self.left_open: list[str] = []
        self._contexts = contexts
        self._entered: list[AbstractContextManager[Any]] = []
        self._snapshot: Snapshot | None = None
        self._carried: Snapshot | None = None
        # Torch's own code may turn gradients off, and an interrupt keep them off.
        self._has_gradients = torch.is_grad_enabled()
        self._interrupts = Interrupts(self._must_wait)

    def run(self, block: Callable[[], T]) -> T:
        """Run ``block`` inside the contexts; can be called again."""
        __tracebackhide__ = True
        self.enter()
        try:
            return block()
        finally:
            self.leave()

    def run_part(self, block: Callable[[], T]) -> T:
        """Run a part of a block; the next part continues in its state of torch."""
        __tracebackhide__ = True
        self.enter()
        carried: Snapshot | None = None
        try:
            returned = block()
            carried = Snapshot()
            return returned
        finally:
            self.leave(carried)

    @uninterrupted
    def enter(self) -> None:
        """Enter all contexts; on any failure or interrupt none stays entered."""
        self._entered = []
        self._snapshot = Snapshot()
        self._interrupts.is_held = True
        try:
            self._interrupts.own()
            for context in self._contexts:
                context.__enter__()
                self._entered.append(context)
            if self._carried is not None:
                self._carried.restore()
        except BaseException:
            self.leave()
            raise
        if self._interrupts.pending:
            self.leave()  # delivers it
        # A plain store: Python looks for signals at calls and jumps only.
        self._interrupts.is_held = False

    @uninterrupted
    def leave(self, carried: Snapshot | None = None) -> None:
        """Leave all contexts, restore, then deliver an interrupt that came."""
        self._interrupts.is_held = True  # a plain store, as above
        self._carried = carried
        if self._snapshot is not None and carried is None:
            for text in self._snapshot.describe_left_open(self._contexts):
                self._note(text)
        while self._entered:
            context = self._entered.pop()
            try:  # one that fails must not keep the others entered
                context.__exit__(None, None, None)
            except Exception as error:  # noqa: BLE001  the snapshot is authoritative
                self._note(f"{type(context).__name__} was not left cleanly: {error}")
        if self._snapshot is not None:
            if isinstance(sys.exc_info()[1], KeyboardInterrupt):
                torch.set_grad_enabled(self._has_gradients)
            odd = self._snapshot.restore()
            for text in odd if carried is None else ():
                self._note(text)
        self._interrupts.give_back()

    def _note(self, text: str) -> None:
        if text not in self.left_open:
            self.left_open.append(text)

    def _must_wait(self, frame: FrameType | None) -> bool:
        """Whether an interrupt arrived on the way into or out of the block."""
        is_own = frame is not None and frame.f_code in self._own_codes
        return is_own or must_wait(frame)
