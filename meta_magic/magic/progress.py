"""A line that says how far a long cell is, from its second second to its end."""

import sys
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from IPython.display import display

from meta_magic.replaying.value_progress import show_line

__all__ = ["ProgressLine"]

FIRST_AFTER: Final = 1.0
EVERY: Final = 0.5


class ProgressLine:
    """Show operators so far and seconds while a cell runs; then make room.

    Args:
        count_operators: Returns the operators recorded so far.
        is_kernel: Whether outputs can be updated in place, as in a notebook.
    """

    def __init__(self, count_operators: Callable[[], int], *, is_kernel: bool) -> None:
        self._count = count_operators
        self._is_kernel = is_kernel
        self._handle: Any = None
        self._done = threading.Event()
        self._lock = threading.Lock()
        self._value = ""
        self._started = time.perf_counter()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin to wait for the first second to pass."""
        if self._is_kernel or sys.stderr.isatty():
            self._thread = threading.Thread(
                target=self._run, name="meta_magic progress", daemon=True
            )
            self._thread.start()

    def show(self, text: str) -> None:
        """Show how far a value is; "" shows operators and seconds again."""
        if self._thread is None:
            show_line(text)
            return
        self._value = text
        if text:
            self._show()

    def finish(self, bundle: Mapping[str, str] | None) -> None:
        """Stop, and show ``bundle`` in the place of the line; None shows nothing."""
        self._done.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None  # what dies here can wait for an interrupt to wait
        if self._handle is not None:
            empty = {"text/plain": "", "text/html": ""}
            self._handle.update(dict(bundle or empty), raw=True)
        elif bundle is not None:
            display(dict(bundle), raw=True)

    def _run(self) -> None:
        if self._done.wait(FIRST_AFTER):
            return
        while True:
            self._show()
            if self._done.wait(EVERY):
                break
        if not self._is_kernel:
            show_line("")

    def _show(self) -> None:
        seconds = time.perf_counter() - self._started
        text = f"%%meta: {self._count():,} operators so far, {seconds:.0f} s"
        bundle = {"text/plain": self._value or text}
        with self._lock:
            if not self._is_kernel:
                show_line(bundle["text/plain"])
            elif self._handle is None:
                self._handle = display(bundle, raw=True, display_id=True)
            else:
                self._handle.update(bundle, raw=True)
