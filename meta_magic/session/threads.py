"""What runs during a block and is not part of it: threads, processes, imports.

Torch's modes belong to one thread: another one uses real memory and leaves no record,
as does a child process. ``Thread(target=model, args=(x,)).start()`` therefore gets a
note; threads that call no function of torch get none. Modules of libraries that the
block imports are there for all later cells: their constants are real.
"""

import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from importlib.machinery import SourceFileLoader
from multiprocessing.process import BaseProcess
from types import FrameType, ModuleType
from typing import Any, Final

import torch
from torch.overrides import TorchFunctionMode

from meta_magic.recording.rows.writers import RecordingReplacements
from meta_magic.session.raised_calls import USERS, home_of
from meta_magic.torch_private.modes import function_mode_stack, pop_function_mode
from meta_magic.torch_private.replacing import PROFILE_OF_THREADS, Replacements

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
        self.wrap(PROFILE_OF_THREADS, self._make_profile)

    def _note_thread(self) -> None:
        name = threading.current_thread().name
        if not name.startswith(OWN_PREFIX):
            self.names.setdefault(name)

    def _make_profile(self, before: Any) -> Any:
        self._old_profile = before
        return self._watch_new_thread

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
