"""Name the threads that were started while recording: their work is not recorded.

Modes belong to one thread. A thread started meanwhile sees none of them, so that what
it does uses real memory and leaves no record; that must be said, not lost.
"""

import sys
import threading
from types import FrameType
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["ThreadWatch"]

OWN_PREFIX: Final = "meta_magic"


class ThreadWatch:
    """Context manager that notes the threads started from within it.

    Attributes:
        names: Names of those threads, in order of starting.
    """

    def __init__(self) -> None:
        self.names: dict[str, None] = {}
        self._old_profile: Any = None

    def __enter__(self) -> None:
        self._old_profile = threading.getprofile()
        threading.setprofile(self._greet)

    def __exit__(self, *_: object) -> None:
        # Some other tool may have set its own meanwhile: leave that alone.
        if threading.getprofile() == self._greet:
            threading.setprofile(self._old_profile)

    def _greet(self, frame: FrameType, event: str, argument: object) -> None:
        """Note the thread that calls this as its first act, and leave it alone."""
        name = threading.current_thread().name
        if not name.startswith(OWN_PREFIX):
            self.names.setdefault(name)
        sys.setprofile(self._old_profile)
        old: Callable[..., Any] | None = self._old_profile
        if old is not None:
            old(frame, event, argument)
