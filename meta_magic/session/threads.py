"""Name the threads and tasks that a block starts: their work is not recorded.

Modes belong to one thread. A thread started meanwhile sees none of them, nor does a
task that the event loop runs while the block awaits something, so that what it does
uses real memory and leaves no record; that must be said, not lost.
"""

import asyncio
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import wraps
from types import FrameType
from typing import TYPE_CHECKING, Any, Final

from meta_magic.torch_private.replacing import PROFILE_OF_THREADS, Replacements

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["TaskWatch", "ThreadWatch"]

OWN_PREFIX: Final = "meta_magic"


class ThreadWatch(Replacements):
    """Context manager that notes the threads that work for what runs within it.

    Those that are started, and those of older pools that are given something to do.

    Attributes:
        names: Names of those threads, in order of starting.
    """

    def __init__(self) -> None:
        super().__init__()
        self.names: dict[str, None] = {}
        self._old_profile: Any = None

    def __enter__(self) -> None:
        # As threading.setprofile does; recordings of two threads end in any order.
        self.wrap(PROFILE_OF_THREADS, self._make_greeting)
        self.wrap((ThreadPoolExecutor, "submit"), self._make_submit)

    def _make_submit(self, before: Any) -> Any:
        """Return what hands work to a pool, whose threads may be older."""
        own = threading.get_ident()

        @wraps(before)
        def submit(pool: Any, function: Any, /, *args: Any, **kwargs: Any) -> Any:
            if threading.get_ident() != own or not self.is_entered:
                return before(pool, function, *args, **kwargs)
            return before(pool, self._work, function, *args, **kwargs)

        return submit

    def _work(self, function: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Note the thread that this runs in, and do what it was given."""
        self._note_thread()
        return function(*args, **kwargs)

    def _note_thread(self) -> None:
        name = threading.current_thread().name
        if not name.startswith(OWN_PREFIX):
            self.names.setdefault(name)

    def _make_greeting(self, before: Any) -> Any:
        """Return what each thread calls first."""
        self._old_profile = before
        return self._greet

    def _greet(self, frame: FrameType, event: str, argument: object) -> None:
        """Note the thread that calls this as its first act, and leave it alone."""
        self._note_thread()
        sys.setprofile(self._old_profile)
        old: Callable[..., Any] | None = self._old_profile
        if old is not None:
            old(frame, event, argument)


class TaskWatch:
    """Context manager that notes the tasks that are created within it.

    Attributes:
        names: Names of what they run, in order of creation.
    """

    def __init__(self) -> None:
        self.names: dict[str, None] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._old_factory: Any = None

    def __enter__(self) -> None:
        try:
            self._loop = asyncio.get_running_loop()
        except RuntimeError:  # none runs: nobody can create a task
            return
        self._old_factory = self._loop.get_task_factory()
        self._loop.set_task_factory(self._create)

    def __exit__(self, *_: object) -> None:
        loop, self._loop = self._loop, None
        if loop is not None and loop.get_task_factory() == self._create:
            loop.set_task_factory(self._old_factory)

    def _create(
        self, loop: asyncio.AbstractEventLoop, coroutine: Any, **options: Any
    ) -> Any:
        """Create a task as ever, and note its name."""
        self.names.setdefault(getattr(coroutine, "__qualname__", str(coroutine)))
        if self._old_factory is not None:
            return self._old_factory(loop, coroutine, **options)
        return asyncio.Task(coroutine, loop=loop, **options)
