"""Cells that await: ``%%meta`` above ``await model(x)``.

A magic cannot be a coroutine: :class:`AwaitTransformer` rewrites such a cell to await
``meta_async``. :class:`PartInterrupts` runs each part between two waits under the
guard, and the waits without it; :func:`recorded_tasks` does so with the tasks that the
cell starts, as by ``asyncio.gather``.

While a cell waits, Python would raise an interrupt in the event loop and not in the
cell, which would hang. So an interrupt between two parts cancels the cell's task, as
``asyncio.run`` does, and is raised in the cell.
"""

import asyncio
import contextlib
import inspect
import signal
import sys
import threading
import types
from collections.abc import Callable, Coroutine, Generator, Iterator, Sequence
from types import CodeType, FrameType
from typing import Any, Self

from meta_magic.magic.cell import TOP_LEVEL_AWAIT
from meta_magic.magic.timed_lines import blank_magic


class PartInterrupts:
    """Context manager that handles interrupts between the parts of a cell.

    It leaves them alone if a front end has its own handler.
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
        run_part: Callable[..., object] | None = None,
    ) -> Generator[Any, Any, object]:
        """Run a coroutine: each part under ``run``, the waits outside of it."""
        __tracebackhide__ = True
        advance = run_part or self._advance
        parts = coroutine.__await__()
        step, value = parts.send, None
        while True:
            try:
                awaited = run(lambda: advance(parts, step, value))  # noqa: B023  called at once
            except StopIteration as stop:
                return stop.value
            except BaseException as error:
                if inspect.getcoroutinestate(coroutine) != inspect.CORO_SUSPENDED:
                    coroutine.close()  # Python warns of one that never started
                    raise
                step, value = parts.throw, error  # interrupted as the part ended
                continue
            # No call follows until the wait, so no interrupt can come in between.
            if self._is_pending:
                continue
            try:
                value = yield awaited
                step = parts.send
            except BaseException as error:  # noqa: BLE001  cancellation goes to the cell
                step, value = parts.throw, error

    def _advance(self, parts: Any, step: Callable[[Any], object], value: Any) -> object:
        """Run a part; raise a pending interrupt in it first."""
        __tracebackhide__ = True
        if self._is_pending:
            self._is_pending = False
            step, value = parts.throw, KeyboardInterrupt()
        return step(value)


PART = PartInterrupts._advance.__code__


def is_in_part(frame: FrameType | None, codes: Sequence[CodeType] = (PART,)) -> bool:
    """Whether a part of a cell is running, by the code that runs it."""
    while frame is not None and frame.f_code not in codes:
        frame = frame.f_back
    return frame is not None


@contextlib.contextmanager
def recorded_tasks(run: Callable[[Callable[[], object]], object]) -> Iterator[None]:
    """Run the parts of tasks that a cell starts under ``run``, until the cell ends.

    Without it ``asyncio.gather(f(), g())`` would run both for real, and unrecorded.
    """
    loop = asyncio.get_running_loop()
    before = loop.get_task_factory()
    is_open = True

    def run_part(part: Callable[[], object]) -> object:
        return run(part) if is_open else part()

    def make(loop: asyncio.AbstractEventLoop, task: Any, **settings: Any) -> Any:
        if is_in_part(sys._getframe(1), (PART, run_task_part.__code__)):
            task = run_task(task, run_part)
        make_task = before or (
            lambda loop, task, **kw: asyncio.Task(task, loop=loop, **kw)
        )
        return make_task(loop, task, **settings)

    loop.set_task_factory(make)
    try:
        yield
    finally:
        is_open = False
        if loop.get_task_factory() is make:
            loop.set_task_factory(before)


async def run_task(
    coroutine: Coroutine[Any, Any, object],
    run: Callable[[Callable[[], object]], object],
) -> object:
    """Run the coroutine of a task: each part under ``run``, the waits outside of it."""
    return await PartInterrupts().drive(coroutine, run, run_task_part)


def run_task_part(_: Any, step: Callable[[Any], object], value: Any) -> object:
    """Run a part of a task; an interrupt in it ends the cell, which waits for it."""
    return step(value)


MAGIC = "%%meta"


class AwaitTransformer:
    """Rewrites cells that await; IPython also calls it to check for completeness."""

    has_side_effects = False

    def __init__(self, shell: Any) -> None:
        self._shell = shell

    def __call__(self, lines: Sequence[str]) -> Sequence[str]:
        """Return the lines of a cell, rewritten if it awaits under ``%%meta``."""
        if not lines or lines[0].split()[:1] != [MAGIC]:
            return lines
        cell = "".join(lines[1:])
        if not cell.strip():
            return lines
        try:
            source = self._shell.transform_cell(blank_magic(cell))
            code = compile(source, "<cell>", "exec", TOP_LEVEL_AWAIT)
        except (SyntaxError, ValueError):
            # Plain code: IPython reports the error, with the right line.
            return [f"# {lines[0]}", *lines[1:]]
        if not code.co_flags & inspect.CO_COROUTINE:
            return lines
        options = lines[0].strip().removeprefix(MAGIC).strip()
        magics = "get_ipython().magics_manager.registry['MetaMagics']"
        return [f"await {magics}.meta_async({options!r}, {cell!r})\n"]
