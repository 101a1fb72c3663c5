"""Tracebacks of recorded cells: the user's frames, and none of ours or torch's.

``%meta full`` shows all frames, ``%debug`` begins in the user's innermost frame. Read
:class:`Rendering` first.
"""

import re
import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from traceback import walk_stack
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from IPython.core.error import UsageError

from meta_magic.magic.cell import Body
from meta_magic.trace.units import cut_lines

if TYPE_CHECKING:
    from meta_magic.session.raised_calls import ShownFrames

WHOLE: Final = "full"
"""The command of ``%meta`` that shows the newest traceback with all its frames."""

ANSI: Final = re.compile(r"\x1b\[[0-9;]*m")
Choose: TypeAlias = Callable[[BaseException, TracebackType | None], "ShownFrames"]


def trim_traceback(shell: Any, error: BaseException, name: str) -> None:
    """Have IPython show an error through :class:`Rendering`.

    The exception's own ``__traceback__`` stays whole, for ``%debug``.
    """
    start = error.__traceback__
    while start is not None and start.tb_frame.f_code.co_filename != name:
        start = start.tb_next
    is_done = hasattr(error, "_render_traceback_")  # by a nested magic
    if start is None or is_done or isinstance(error, SyntaxError):
        return
    try:
        error._render_traceback_ = Rendering(shell, error, start)  # type: ignore[attr-defined]  # read by IPython
    except AttributeError:  # an exception with slots is shown in full
        return


class Rendering:
    """Renders an error of a cell, as IPython asks for it."""

    def __init__(self, shell: Any, error: BaseException, first: TracebackType) -> None:
        self._shell = shell
        self._error = error
        self._first = first
        self._running = {id(frame) for frame, _ in walk_stack(sys._getframe())}

    def __call__(self) -> list[str]:
        """Return the lines of the traceback."""
        from meta_magic.session.raised_calls import choose_but_ours, choose_frames  # noqa: PLC0415  torch

        is_verbose = self._shell.InteractiveTB.mode == "Verbose"
        return self.render(choose_but_ours if is_verbose else choose_frames)

    def render(self, choose: Choose) -> list[str]:
        """Return the lines of the traceback with the frames that ``choose`` returns."""
        from meta_magic.session.raised_calls import choose_all  # noqa: PLC0415  torch

        error, tracebacks = self._error, self._shell.InteractiveTB
        # If another cell raised it again, the traceback begins in that cell.
        namespace = self._shell.user_global_ns
        again = find_reraise(error, self._first, self._running, namespace)
        shown, folded = choose(error, again or self._first)
        with causes_folded(error, choose) as others:
            lines: list[str] = tracebacks.structured_traceback(
                type(error), error, link(shown), tb_offset=0
            )
        tracebacks.tb = error.__traceback__  # the stack of IPython 7's %debug
        notes = getattr(error, "__notes__", ())
        text = "\n".join(lines)
        lines += [note for note in notes if note not in text]  # IPython 7
        if choose is not choose_all:
            lines = [*map(cut_lines, lines)]
        hidden = [*folded, *others]
        if hidden and tracebacks.mode != "Minimal":
            lines.insert(find_error(lines, error), describe_folded(hidden))
        return lines


@contextmanager
def causes_folded(error: BaseException, choose: Choose) -> Iterator[list[str]]:
    """Fold frames of an error's causes for a while; skip those without user frames."""
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
    """Return the causes of an error, the nearest first."""
    found = [error]
    while True:
        last = found[-1]
        cause = last.__cause__ or (
            None if last.__suppress_context__ else last.__context__
        )
        if cause is None or any(cause is other for other in found):
            return found[1:]
        found.append(cause)


def find_error(lines: list[str], error: BaseException) -> int:
    """Return the index of an error's text among the lines of its traceback."""
    name = type(error).__name__
    found = (i for i, text in enumerate(lines) if ANSI.sub("", text).startswith(name))
    return max(found, default=len(lines))


def describe_folded(packages: list[str]) -> str:
    """Return the line about the folded frames."""
    names = ", ".join(dict.fromkeys(packages))
    plural = "" if len(packages) == 1 else "s"
    return (
        f"    [... {len(packages)} frame{plural} of {names} folded: "
        f"%meta {WHOLE} shows all]\n"
    )


def show_whole(shell: Any) -> object:
    """Print the newest traceback with all its frames, torch's and ours too."""
    from meta_magic.session.raised_calls import choose_all  # noqa: PLC0415  torch

    error = getattr(sys, "last_value", None)
    if error is None:
        raise UsageError(f"%meta {WHOLE}: there was no error to show")
    rendering = getattr(error, "_render_traceback_", None)
    tracebacks = shell.InteractiveTB
    before, tracebacks.skip_hidden = tracebacks.skip_hidden, False
    try:
        if not isinstance(rendering, Rendering):  # of another cell
            return shell.showtraceback((type(error), error, error.__traceback__))
        print(tracebacks.stb2text(rendering.render(choose_all)))  # noqa: T201  asked for
    finally:
        tracebacks.skip_hidden = before
    return None


def find_reraise(
    error: BaseException,
    first: TracebackType,
    running: Collection[int],
    namespace: object,
) -> TracebackType | None:
    """Return the frame of a later cell that raised an error again, if any.

    ``first`` is the frame of the cell that raised it first, ``running`` the frames that
    ran at that time, which are no later cells.
    """
    entry = error.__traceback__
    while entry is not None and entry is not first:
        frame = entry.tb_frame
        if frame.f_globals is namespace and id(frame) not in running:
            return entry
        entry = entry.tb_next
    return None


def link(entries: Sequence[TracebackType]) -> TracebackType | None:
    """Return a traceback that consists of copies of some entries."""
    linked: TracebackType | None = None
    for entry in reversed(entries):
        linked = TracebackType(linked, entry.tb_frame, entry.tb_lasti, entry.tb_lineno)
    return linked


CELLS: Final = frozenset({Body.run.__code__, Body.run_async.__code__})


class UsersFrame:
    """Has ``%debug`` begin in the user's innermost frame after a ``%%meta`` cell fails.

    Frames of torch are a ``down`` away.
    """

    def __init__(self, shell: Any) -> None:
        self._tracebacks = shell.InteractiveTB
        self._former = self._tracebacks.debugger_cls
        self._own = derive_debugger(self._former)
        self._install(self._own)

    def remove(self) -> None:
        """Restore the shell's debugger, unless another one was set meanwhile."""
        if self._tracebacks.debugger_cls is self._own:
            self._install(self._former)

    def _install(self, debugger: type) -> None:
        self._tracebacks.debugger_cls = debugger
        self._tracebacks.pdb = None  # a cached instance of the other class


def derive_debugger(base: Any) -> type:
    """Return a subclass of a debugger that begins in the user's frame."""

    class Debugger(base):  # type: ignore[misc]  # whatever the shell has
        def get_stack(self, frame: Any, traceback: Any) -> tuple[list[Any], int]:
            stack, at = super().get_stack(frame, traceback)
            if frame is None and any(f.f_code in CELLS for f, _ in stack):
                from meta_magic.session.raised_calls import USERS, home_of  # noqa: PLC0415  torch

                files = [home_of(f.f_code.co_filename) for f, _ in stack]
                at = max(at for at, file in enumerate(files) if file == USERS)
            return stack, at

    return Debugger
