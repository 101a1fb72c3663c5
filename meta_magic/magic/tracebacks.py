"""Show the user's frames of an error, and none of ours or torch's plumbing."""

import sys
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, Final

__all__ = ["trim_traceback"]

PLUMBING: Final = (
    "torch/utils/_device.py",
    "torch/_compile.py",
    "torch/_dynamo/eval_frame.py",
    "torch/_ops.py",
    "torch/nn/modules/module.py",
    "torch/overrides.py",
)
OWN: Final = str(Path(__file__).parent.parent)


def trim_traceback(shell: Any, error: BaseException, name: str) -> None:
    """Make IPython begin an error's traceback at the frame of the cell.

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
    first: TracebackType = start
    running = frames_running()

    def render() -> list[str]:
        # Raised again by another cell, it is that cell that must be shown first.
        begin = find_reraise(error, first, running, shell.user_global_ns) or first
        shown = without_plumbing(begin)
        lines: list[str] = shell.InteractiveTB.structured_traceback(
            type(error), error, shown, tb_offset=0
        )
        notes = getattr(error, "__notes__", ())
        text = "\n".join(lines)
        return [*lines, *(note for note in notes if note not in text)]  # IPython 7

    try:
        error._render_traceback_ = render  # type: ignore[attr-defined]  # read by IPython
    except AttributeError:  # an exception with slots: shown in full
        return


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


def without_plumbing(traceback: TracebackType) -> TracebackType | None:
    """Return a copy of a traceback without the frames between user and kernel."""
    kept = []
    entry: TracebackType | None = traceback
    while entry is not None:
        file = entry.tb_frame.f_code.co_filename.replace("\\", "/")
        if not file.endswith(PLUMBING) and not file.startswith(OWN):
            kept.append(entry)
        entry = entry.tb_next
    copied: TracebackType | None = None
    for entry in reversed(kept):
        copied = TracebackType(copied, entry.tb_frame, entry.tb_lasti, entry.tb_lineno)
    return copied
