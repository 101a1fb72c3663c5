"""Show how far a value is that takes long to compute, and how to go on without it.

``loss.item()`` may replay seconds of training: without a line that moves, the cell
looks as if it hung. :func:`show_line` writes the line to the terminal; a recording may
be given what shows it elsewhere, as in a notebook.
"""

import sys
import time
from collections.abc import Callable, Sequence
from typing import Final, TypeAlias

__all__ = ["OUTLETS", "Show", "ValueProgress", "show_line"]

Show: TypeAlias = Callable[[str], None]
"""Shows a line in the place of the one before; "" removes it."""

FIRST_AFTER: Final = 0.5
EVERY: Final = 0.25

EARLY: Final = 0.1
"""The part of the work after which its own speed tells how long all of it takes."""


class ValueProgress:
    """The progress of one replay.

    Args:
        describe: Returns what is computed, such as ``loss, line 33``.
        estimate: Returns about how many seconds each step takes, in order.
        show: Shows the line.
    """

    def __init__(
        self,
        describe: Callable[[], str],
        estimate: Callable[[], Sequence[float]],
        show: Show,
    ) -> None:
        self._describe = describe
        self._estimate = estimate
        self._show = show
        self._seconds: Sequence[float] = ()
        self._started = time.perf_counter()
        self._next = self._started + FIRST_AFTER
        self._n_done = 0

    def note_step(self) -> None:
        """Note that one more step is done; show the line where it is time."""
        self._n_done += 1
        now = time.perf_counter()
        if now >= self._next:
            self._show(self._write(now - self._started))
            self._next = time.perf_counter() + EVERY

    def finish(self) -> None:
        """Remove the line, if one is shown."""
        if self._seconds:
            self._show("")

    def _write(self, elapsed: float) -> str:
        if not self._seconds:
            self._seconds = self._estimate()
        about, done = sum(self._seconds), sum(self._seconds[: self._n_done])
        if done > EARLY * about:
            about = elapsed * about / done
        return (
            f"{self._describe()}: {elapsed:.1f} s of about {max(about, elapsed):.0f} s "
            "(to go on without: --assume values=nan)"
        )


def show_line(text: str) -> None:
    """Show a line where this process shows them: at the end of its terminal, if any."""
    OUTLETS[-1](text)


def write_to_terminal(text: str) -> None:
    """Write a line over the last one of a terminal; nothing elsewhere."""
    if sys.stderr.isatty():
        sys.stderr.write(f"\r\033[K{text}")
        sys.stderr.flush()


OUTLETS: Final[list[Show]] = [write_to_terminal]
"""What shows lines in this process: the last one."""
