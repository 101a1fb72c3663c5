"""Show the user's frames of an error, and none of ours or torch's plumbing."""

import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from IPython.core.error import UsageError

if TYPE_CHECKING:
    from meta_magic.session.shown_frames import ShownFrames

__all__ = ["WHOLE", "add_below", "show_whole", "trim_traceback"]

WHOLE: Final = "full"
"""What ``%meta`` is told to show the newest traceback with all of its frames."""

ANSI: Final = re.compile(r"\x1b\[[0-9;]*m")

Choose: TypeAlias = Callable[[BaseException, TracebackType | None], "ShownFrames"]


def trim_traceback(shell: Any, error: BaseException, name: str) -> None:
    """Make IPython begin an error's traceback at the frame of the cell, and fold it.

    The exception's own ``__traceback__`` stays whole, for ``%debug``.

    Args:
        shell: The IPython shell.
        error: What the cell raised.
        name: File name that the cell was compiled under.
    """
    start = error.__traceback__
    while start is not None and start.tb_frame.f_code.co_filename != name:
        start = start.tb_next
    is_done = hasattr(error, "_render_traceback_")  # by a magic within this one
    if start is None or is_done or isinstance(error, SyntaxError):
        return
    try:
        error._render_traceback_ = Rendering(shell, error, start)  # type: ignore[attr-defined]  # read by IPython
    except AttributeError:  # an exception with slots: shown in full
        return


def add_below(error: BaseException, text: str) -> None:
    """Have a text stand below the traceback of an error of a cell."""
    rendering = getattr(error, "_render_traceback_", None)
    if isinstance(rendering, Rendering):
        rendering.below = text


class Rendering:
    """Renders an error of a cell, as IPython asks for it.

    Args:
        shell: The IPython shell.
        error: The error.
        first: Where it came up first in the cell.

    Attributes:
        below: What stands below the traceback; "" for nothing.
    """

    below = ""

    def __init__(self, shell: Any, error: BaseException, first: TracebackType) -> None:
        self._shell = shell
        self._error = error
        self._first = first
        self._running = frames_running()

    def __call__(self) -> list[str]:
        """Return the lines of the traceback."""
        from meta_magic.session.shown_frames import choose_but_ours, choose_frames  # noqa: PLC0415  torch

        is_verbose = self._shell.InteractiveTB.mode == "Verbose"
        lines = self.render(choose_but_ours if is_verbose else choose_frames)
        return [*lines, f"\n{self.below}"] if self.below else lines

    def render(self, choose: Choose) -> list[str]:
        """Return the lines of the traceback.

        Args:
            choose: Returns the frames that are shown.
        """
        error, tracebacks = self._error, self._shell.InteractiveTB
        # Raised again by another cell, it is that cell that must be shown first.
        namespace = self._shell.user_global_ns
        again = find_reraise(error, self._first, self._running, namespace)
        shown, folded = choose(error, again or self._first)
        with causes_folded(error, choose) as others:
            lines: list[str] = tracebacks.structured_traceback(
                type(error), error, link(shown), tb_offset=0
            )
        tracebacks.tb = error.__traceback__  # IPython 7's %debug has this for its stack
        notes = getattr(error, "__notes__", ())
        text = "\n".join(lines)
        lines += [note for note in notes if note not in text]  # IPython 7
        hidden = [*folded, *others]
        if hidden and tracebacks.mode != "Minimal":
            lines.insert(find_error(lines, error), describe_folded(hidden))
        return lines


@contextmanager
def causes_folded(error: BaseException, choose: Choose) -> Iterator[list[str]]:
    """Have the errors behind another shown as it is, for a while.

    One of which nothing is shown, as it never reached the user, is passed over.

    Yields:
        The packages of the frames that are not shown of them.
    """
    folded: list[str] = []
    causes = causes_of(error)
    whole = [(e, e.__context__, e.__traceback__) for e in (error, *causes)]
    last = error
    try:
        for cause in causes:
            shown, others = choose(cause, cause.__traceback__)
            folded += others
            if shown or last.__cause__ is cause:
                cause.__traceback__ = link(shown)
                last = cause
            else:
                last.__context__ = cause.__context__
        yield folded
    finally:
        for cause, context, traceback in whole:
            cause.__context__ = context
            cause.__traceback__ = traceback


def causes_of(error: BaseException) -> list[BaseException]:
    """Return the errors that led to another, the nearest first."""
    met = [error]
    while True:
        context = None if met[-1].__suppress_context__ else met[-1].__context__
        cause = met[-1].__cause__ or context
        if cause is None or any(cause is other for other in met):
            return met[1:]
        met.append(cause)


def find_error(lines: list[str], error: BaseException) -> int:
    """Return where the text of an error stands among the lines of its traceback."""
    name = type(error).__name__
    found = (i for i, text in enumerate(lines) if ANSI.sub("", text).startswith(name))
    return max(found, default=len(lines))


def describe_folded(packages: list[str]) -> str:
    """Return the line that stands for the frames that are not shown."""
    names = ", ".join(dict.fromkeys(packages))
    plural = "" if len(packages) == 1 else "s"
    return (
        f"    [... {len(packages)} frame{plural} of {names} folded: "
        f"%meta {WHOLE} shows all]\n"
    )


def show_whole(shell: Any) -> object:
    """Print the newest traceback with all of its frames, torch's and ours too.

    Raises:
        UsageError: There was no error.
    """
    from meta_magic.session.shown_frames import choose_all  # noqa: PLC0415  torch

    error = getattr(sys, "last_value", None)
    if error is None:
        raise UsageError(f"%meta {WHOLE}: there was no error to show")
    rendering = getattr(error, "_render_traceback_", None)
    tracebacks = shell.InteractiveTB
    before, tracebacks.skip_hidden = tracebacks.skip_hidden, False  # as record() does
    try:
        if not isinstance(rendering, Rendering):  # of another cell
            return shell.showtraceback((type(error), error, error.__traceback__))
        print(tracebacks.stb2text(rendering.render(choose_all)))  # noqa: T201  asked for
    finally:
        tracebacks.skip_hidden = before
    return None


def frames_running() -> frozenset[int]:
    """Return the identities of the frames on the stack."""
    found = set()
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        found.add(id(frame))
        frame = frame.f_back
    return frozenset(found)


def find_reraise(
    error: BaseException,
    first: TracebackType,
    running: frozenset[int],
    namespace: object,
) -> TracebackType | None:
    """Return the frame of a later cell from which an error came up again, if any.

    Args:
        error: The error.
        first: Where it came up first.
        running: The frames that were running then: those are not later.
        namespace: The namespace of cells.
    """
    entry = error.__traceback__
    while entry is not None and entry is not first:
        frame = entry.tb_frame
        if frame.f_globals is namespace and id(frame) not in running:
            return entry
        entry = entry.tb_next
    return None


def link(entries: Sequence[TracebackType]) -> TracebackType | None:
    """Return a traceback of copies of some entries."""
    linked: TracebackType | None = None
    for entry in reversed(entries):
        linked = TracebackType(linked, entry.tb_frame, entry.tb_lasti, entry.tb_lineno)
    return linked
