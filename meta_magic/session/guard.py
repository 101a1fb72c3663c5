"""Leave torch and the interrupt handler exactly as they were, however a block ends.

``with torch.device("meta")`` alone is not safe: half of the interrupts that arrive in
its enter or exit leave the process on meta, and a mode that the block forgot to leave
makes the exit pop the wrong one. So ``Guard`` takes a snapshot of torch, restores it
after the block, and delivers an interrupt only while the block itself runs.

Torch's modes belong to one thread: another one uses real memory and leaves no record.
``Thread(target=model, args=(x,)).start()`` therefore gets a note (``ThreadWatch``).
"""

import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from importlib.machinery import SourceFileLoader
from multiprocessing.process import BaseProcess
from types import FrameType, ModuleType
from typing import Any, Final, TypeVar

import torch
from torch.overrides import TorchFunctionMode

from meta_magic.recording.rows.writers import RecordingReplacements
from meta_magic.session.raised_calls import USERS, home_of
from meta_magic.torch_private.interrupts import Interrupts, must_wait, uninterrupted
from meta_magic.torch_private.modes import function_mode_stack, pop_function_mode
from meta_magic.torch_private.replacing import PROFILE_OF_THREADS, Replacements
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


OWN_PREFIX: Final = "meta_magic"

PROCESS: Final = (
    "child process {!r} was not recorded: a recording belongs to one process (--world "
    "N records what mp.spawn starts as one of N)"
)

of_thread = threading.local()
"""Holds a ``KeptMode`` as ``stay``, which leaves its mode when the thread ends."""


class TorchWatch(TorchFunctionMode):
    """Function mode that calls ``note`` when a thread calls torch."""

    def __init__(self, note: Callable[[], None]) -> None:
        super().__init__()
        self._note = note

    def __torch_function__(
        self,
        func: Any,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Call ``note`` and then the function."""
        self._note()
        return func(*args, **(kwargs or {}))


class KeptMode:
    """Keeps a mode entered for as long as the current thread lives."""

    def __init__(self, mode: TorchFunctionMode) -> None:
        self._mode, self._thread = mode, threading.get_ident()
        mode.__enter__()

    def __del__(self) -> None:
        is_same = threading.get_ident() == self._thread
        if is_same and function_mode_stack()[-1:] == [self._mode]:
            pop_function_mode()


class ThreadWatch(Replacements):
    """Context manager that notes the new threads of a block that use torch."""

    def __init__(self) -> None:
        super().__init__()
        self.names: dict[str, None] = {}
        self._old_profile: Any = None

    def __enter__(self) -> None:
        # Not threading.setprofile: recordings of two threads end in any order.
        owner, name = PROFILE_OF_THREADS
        self._old_profile = getattr(owner, name)
        self.replace(owner, name, self._watch_new_thread)

    def _note_thread(self) -> None:
        name = threading.current_thread().name
        if not name.startswith(OWN_PREFIX):
            self.names.setdefault(name)

    def _watch_new_thread(self, frame: FrameType, event: str, argument: object) -> None:
        """Watch a new thread, which calls this profile function first of all."""
        of_thread.stay = KeptMode(TorchWatch(self._note_thread))
        sys.setprofile(self._old_profile)
        old: Callable[..., Any] | None = self._old_profile
        if old is not None:
            old(frame, event, argument)


class ProcessWatch(RecordingReplacements):
    """Context manager that notes the child processes of a block."""

    def __enter__(self) -> None:
        self.replace_here(BaseProcess, {"start": self._start})

    def _start(self, plain: Callable[..., None], process: BaseProcess) -> None:
        self._note("process", PROCESS.format(process.name))
        plain(process)


class LibraryImports(Replacements):
    """Context manager in which modules of libraries make real tensors when imported.

    Else constants of a library stay on meta in later cells, as in ``torchdiffeq``.
    """

    def __enter__(self) -> None:
        self.replace_here(SourceFileLoader, {"exec_module": run_module})


def run_module(
    plain: Callable[..., None], loader: SourceFileLoader, module: ModuleType
) -> None:
    """Run a module that is imported; the user's own are part of the block."""
    if home_of(loader.path) == USERS:
        plain(loader, module)
    else:
        with torch.device("cpu"):
            plain(loader, module)
