"""Cells that await: ``%%meta`` above ``await model(x)``.

A magic cannot be a coroutine: :class:`AwaitTransformer` rewrites such a cell to await
``meta_async``. :class:`CellParts` runs each part between two waits under the guard, and
the waits without it; it does so with the tasks that the cell starts, too, as by
``asyncio.gather``.

While a cell waits, Python would raise an interrupt in the event loop and not in the
cell, which would hang. ipykernel asks the event loop to cancel the cell, which waits
for the end of the running part. So an interrupt in a part is raised there; one between
two parts cancels the cell's task, as ``asyncio.run`` does.
"""

import asyncio
import contextlib
import inspect
import signal
import sys
import threading
import types
from collections.abc import Callable, Coroutine, Generator, Iterator, Sequence
from traceback import walk_stack
from types import FrameType
from typing import Any, Self

from meta_magic.magic.cell import TOP_LEVEL_AWAIT, blank_magic


class CellParts:
    """Context manager that runs the parts of a cell, and handles interrupts of them.

    It leaves interrupts alone if somebody other than ipykernel has a handler.
    """

    def __init__(self, run: Callable[[Callable[[], object]], object]) -> None:
        self._run = run
        self._task: asyncio.Task[Any] | None = None
        self._handler: Any = None
        self._is_pending = False

    def __enter__(self) -> Self:
        handler = signal.getsignal(signal.SIGINT)
        is_kernel = str(getattr(handler, "__module__", "")).startswith("ipykernel")
        is_main = threading.current_thread() is threading.main_thread()
        if is_main and (is_kernel or handler is signal.default_int_handler):
            with contextlib.suppress(RuntimeError):  # another kind of event loop
                self._task = asyncio.current_task()
        if self._task is not None:
            self._handler = handler
            signal.signal(signal.SIGINT, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        from meta_magic.torch_private.interrupts import put_back  # noqa: PLC0415  torch

        if self._task is not None:
            put_back(self._handle, self._handler)
        if self._is_pending:
            raise KeyboardInterrupt

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if frame is None or self._is_pending or is_in_part(frame):
            self._is_pending = False
            signal.default_int_handler(number, frame)
        if self._handler is signal.default_int_handler:
            self._interrupt_cell()
        else:
            self._handler(number, frame)
            self._wake()

    def _interrupt_cell(self) -> None:
        """Have the cell raise ``KeyboardInterrupt`` in its next part."""
        self._is_pending = True
        task = self._task
        if task is not None and asyncio.current_task(task.get_loop()) is not task:
            task.cancel()
            self._wake()

    def _wake(self) -> None:
        if self._task is not None:
            self._task.get_loop().call_soon_threadsafe(bool)

    @types.coroutine
    def drive(
        self, coroutine: Coroutine[Any, Any, object]
    ) -> Generator[Any, Any, object]:
        """Run a coroutine: each part under the guard, the waits outside of it."""
        __tracebackhide__ = True
        step: Callable[[Any], object] = coroutine.send
        value: Any = None
        while True:
            try:
                awaited = self._run(lambda: self._advance(coroutine, step, value))  # noqa: B023  called at once
            except StopIteration as stop:
                return stop.value
            except BaseException as error:
                if inspect.getcoroutinestate(coroutine) != inspect.CORO_SUSPENDED:
                    coroutine.close()  # Python warns of one that never started
                    raise
                step, value = coroutine.throw, error  # interrupted as the part ended
                continue
            # No call follows until the wait, so no interrupt can come in between.
            if self._is_pending and asyncio.current_task() is self._task:
                continue
            try:
                value = yield awaited
                step = coroutine.send
            except BaseException as error:  # noqa: BLE001  cancellation goes to the cell
                step, value = coroutine.throw, error

    def _advance(
        self, coroutine: Any, step: Callable[[Any], object], value: Any
    ) -> object:
        """Run a part; raise a pending interrupt in it first, if it is the cell's."""
        __tracebackhide__ = True
        if self._is_pending and asyncio.current_task() is self._task:
            self._is_pending = False
            step, value = coroutine.throw, KeyboardInterrupt()
        return step(value)

    @contextlib.contextmanager
    def with_tasks(self) -> Iterator[None]:
        """Run the tasks that a cell starts in parts, too, until the cell ends.

        Without it ``asyncio.gather(f(), g())`` would run both for real, and unrecorded.
        """
        loop = asyncio.get_running_loop()
        before = loop.get_task_factory()

        def make(loop: asyncio.AbstractEventLoop, task: Any, **settings: Any) -> Any:
            if is_in_part(sys._getframe(1)):
                task = self._run_task(task)
            make_task = before or (
                lambda loop, task, **kw: asyncio.Task(task, loop=loop, **kw)
            )
            return make_task(loop, task, **settings)

        loop.set_task_factory(make)
        try:
            yield
        finally:
            self._run = lambda part: part()
            if loop.get_task_factory() is make:
                loop.set_task_factory(before)

    async def _run_task(self, coroutine: Coroutine[Any, Any, object]) -> object:
        """Run the coroutine of a task; an interrupt in it ends the cell."""
        try:
            return await self.drive(coroutine)
        except KeyboardInterrupt:
            if self._task is None:
                raise
            self._interrupt_cell()
            raise asyncio.CancelledError from None


PART = CellParts._advance.__code__


def is_in_part(frame: FrameType | None) -> bool:
    """Whether a part of a cell is running, by the code that runs it."""
    frames = () if frame is None else walk_stack(frame)
    return any(one.f_code is PART for one, _ in frames)


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
