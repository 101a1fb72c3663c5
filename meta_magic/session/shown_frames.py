"""Choose the frames of a traceback that its reader wants to see.

The user's own, and the innermost one below them that is a library's and not torch's:
what torch does between the user's line and its words is of no help to him.
"""

import inspect
import re
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Final, NamedTuple

from meta_magic.recording.identities.frame_kinds import PACKAGE, TORCH_FILES, is_stdlib

IN_PACKAGES: Final = re.compile(r".*/(?:site|dist)-packages/([^/.]+)")
OURS: Final = "meta_magic"
TORCHS: Final = "torch"
PYTHONS: Final = "Python"
USERS: Final = ""


class ShownFrames(NamedTuple):
    """What is shown of a traceback, and what is not.

    Attributes:
        entries: Those shown, outermost first.
        folded: For each that is not, and is not ours, the package that it is of.
    """

    entries: Sequence[TracebackType]
    folded: Sequence[str]


def choose_frames(error: BaseException, start: TracebackType | None) -> ShownFrames:
    """Return what to show of an error's traceback, from an entry of it on.

    All but ours where torch has no part in it. Where the error has no text, as a bare
    ``assert``, the frame that raised it says what is wrong. None of what torch and we
    settled among us.
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
    """Return the package that a file is of; "" if it is the user's own."""
    if file.startswith(PACKAGE):
        return OURS
    if file.startswith(TORCH_FILES):
        return TORCHS
    package = IN_PACKAGES.match(file)
    if package is not None:
        return package[1]
    return PYTHONS if is_stdlib(file) or file.startswith("<frozen ") else USERS


def hide_others(error: BaseException) -> None:
    """Have pytest and IPython hide the frames of an error that are not shown.

    They look into each for a variable of a certain name. It is added after all has
    happened: an assignment in each function of ours would be felt.
    """
    shown = {id(e) for e in choose_frames(error, error.__traceback__).entries}
    for entry in walk_traceback(error.__traceback__):
        frame = entry.tb_frame
        is_function = frame.f_code.co_flags & inspect.CO_OPTIMIZED
        if shown and id(entry) not in shown and is_function:
            frame.f_locals["__tracebackhide__"] = True
