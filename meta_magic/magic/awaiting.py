"""Drive a cell that awaits: each of its parts under the guard, the waits outside of it.

Python raises an interrupt wherever the event loop is just then. The cell would wait for
ever, with all that it has opened: so one that comes between two parts cancels the
cell's task, as ``asyncio.run`` does it, and is raised in the cell.
"""

import asyncio
import contextlib
import inspect
import signal
import threading
import types
from collections.abc import Callable, Coroutine, Generator
from types import FrameType
from typing import Any, Self

__all__ = ["PartInterrupts"]


class PartInterrupts:
    """Context manager that takes the interrupts between the parts of a cell.

    Only those that Python would raise: a front end may have its own way with them.
    """

    def __init__(self) -> None:
        self._task: asyncio.Task[Any] | None = None
        self._is_pending = False

    def __enter__(self) -> Self:
        is_main = threading.current_thread() is threading.main_thread()
        if is_main and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            with contextlib.suppress(RuntimeError):  # another kind of event loop
                self._task = asyncio.current_task()
        if self._task is not None:
            signal.signal(signal.SIGINT, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        from meta_magic.torch_private.interrupts import put_back  # noqa: PLC0415  torch

        if self._task is not None:
            put_back(self._handle, signal.default_int_handler)
        if self._is_pending:
            raise KeyboardInterrupt

    def _handle(self, number: int, frame: FrameType | None) -> None:
        is_second = self._is_pending
        if frame is None or is_second or is_in_part(frame):
            self._is_pending = False
            signal.default_int_handler(number, frame)
        self._is_pending = True
        task = self._task
        if task is not None and asyncio.current_task(task.get_loop()) is not task:
            task.cancel()
            task.get_loop().call_soon_threadsafe(bool)  # wakes it up

    @types.coroutine
    def drive(
        self,
        coroutine: Coroutine[Any, Any, object],
        run: Callable[[Callable[[], object]], object],
    ) -> Generator[Any, Any, object]:
        """Drive a coroutine: each part under ``run``, the waits outside of it."""
        __tracebackhide__ = True
        parts = coroutine.__await__()
        step, value = parts.send, None
        while True:
            try:
                awaited = run(lambda: self._advance(parts, step, value))  # noqa: B023  called at once
            except StopIteration as stop:
                return stop.value
            except BaseException as error:
                if inspect.getcoroutinestate(coroutine) != inspect.CORO_SUSPENDED:
                    coroutine.close()  # of one that never began Python warns
                    raise
                step, value = parts.throw, error  # an interrupt on the way out of it
                continue
            if self._is_pending:  # no call from here to the wait: none can come
                continue
            try:
                value = yield awaited
                step = parts.send
            except BaseException as error:  # noqa: BLE001  cancellation goes to the cell
                step, value = parts.throw, error

    def _advance(self, parts: Any, step: Callable[[Any], object], value: Any) -> object:
        """Run a part, or interrupt it first if one came since the part before."""
        __tracebackhide__ = True
        if self._is_pending:
            self._is_pending = False
            step, value = parts.throw, KeyboardInterrupt()
        return step(value)


PART = PartInterrupts._advance.__code__


def is_in_part(frame: FrameType | None) -> bool:
    """Whether a part of a cell is running."""
    while frame is not None and frame.f_code is not PART:
        frame = frame.f_back
    return frame is not None
