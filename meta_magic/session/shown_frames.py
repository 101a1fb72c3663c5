"""Choose the frames of a traceback that help its reader.

These are the user's own frames, and below them the innermost frame of a library other
than torch. ``nn.Linear(4, 2)(x)`` then shows one line and the error, not ten frames of
torch and ours. Read ``choose_frames`` first.
"""

import inspect
import re
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Final, NamedTuple

from meta_magic.recording.identities.call_sites import PACKAGE, TORCH_FILES, is_stdlib

IN_PACKAGES: Final = re.compile(r".*/(?:site|dist)-packages/([^/.]+)")
OURS: Final = "meta_magic"
TORCHS: Final = "torch"
PYTHONS: Final = "Python"
USERS: Final = ""


class ShownFrames(NamedTuple):
    """The entries of a traceback that are shown, and what is hidden."""

    entries: Sequence[TracebackType]
    folded: Sequence[str]


def choose_frames(error: BaseException, start: TracebackType | None) -> ShownFrames:
    """Return the frames of an error's traceback to show, from one of its entries on.

    Without a frame of torch, all but ours are shown. An error without text, as of a
    bare ``assert``, is shown with the frame that raised it, also if that is torch's.
    """
    entries = [*walk_traceback(start)]
    homes = [home_of(entry.tb_frame.f_code.co_filename) for entry in entries]
    shown = {at for at, home in enumerate(homes) if home == USERS}
    below = range(max(shown, default=-1) + 1, len(homes))
    hidden = {OURS, TORCHS} if str(error) else {OURS}
    shown.update([at for at in below if homes[at] not in hidden][-1:])
    if TORCHS not in homes:
        shown = {at for at, home in enumerate(homes) if home != OURS}
    return ShownFrames(
        [entry for at, entry in enumerate(entries) if at in shown],
        [home for at, home in enumerate(homes) if at not in shown and home != OURS],
    )


def choose_but_ours(_: BaseException, start: TracebackType | None) -> ShownFrames:
    """Return all frames of a traceback but ours."""
    entries = walk_traceback(start)
    files = ((entry, entry.tb_frame.f_code.co_filename) for entry in entries)
    return ShownFrames([e for e, file in files if not file.startswith(PACKAGE)], ())


def choose_all(_: BaseException, start: TracebackType | None) -> ShownFrames:
    """Return all frames of a traceback."""
    return ShownFrames([*walk_traceback(start)], ())


def walk_traceback(traceback: TracebackType | None) -> Iterator[TracebackType]:
    """Yield the entries of a traceback, outermost first."""
    while traceback is not None:
        yield traceback
        traceback = traceback.tb_next


def home_of(file: str) -> str:
    """Return the package that a file belongs to; "" for the user's own code."""
    if file.startswith(PACKAGE):
        return OURS
    if file.startswith(TORCH_FILES):
        return TORCHS
    package = IN_PACKAGES.match(file)
    if package is not None:
        return package[1]
    return PYTHONS if is_stdlib(file) or file.startswith("<frozen ") else USERS


def hide_others(error: BaseException) -> None:
    """Make pytest and IPython hide the frames of an error that are not shown.

    Both hide a frame with a local variable ``__tracebackhide__``. It is added here, as
    an assignment in each function of ours would slow down every call.
    """
    shown = {id(e) for e in choose_frames(error, error.__traceback__).entries}
    for entry in walk_traceback(error.__traceback__):
        frame = entry.tb_frame
        is_function = frame.f_code.co_flags & inspect.CO_OPTIMIZED
        if shown and id(entry) not in shown and is_function:
            frame.f_locals["__tracebackhide__"] = True
