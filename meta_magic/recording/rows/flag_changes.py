"""Which flags of torch's backends were set, and from which call on."""

import threading
from collections.abc import Callable
from functools import partial
from typing import Any

from meta_magic.recording.identities.clock import Clock
from meta_magic.torch_private.backend_flags import FLAGS
from meta_magic.torch_private.replacing import Replacements

__all__ = ["FlagChanges"]


class FlagChanges(Replacements):
    """Context manager that notes what is set in it, or was set before.

    Args:
        clock: Dates each change.

    Attributes:
        changes: (call from which on, name, value) of each.
    """

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self.changes: list[tuple[int, str, Any]] = []
        self._clock = clock
        self._thread = threading.get_ident()
        self._known = {name: flag.default for name, flag in FLAGS.items()}

    def __enter__(self) -> None:
        self._thread = threading.get_ident()
        for name, flag in FLAGS.items():
            self._note(name, flag.read())
            for place in flag.setters:
                self.wrap(place, partial(self._make_setter, name))

    def _make_setter(self, name: str, before: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that sets a flag and notes it."""
        read = FLAGS[name].read

        def write(*args: Any, **kwargs: Any) -> Any:
            returned = before(*args, **kwargs)
            if threading.get_ident() == self._thread:
                self._note(name, read())
            return returned

        return write

    def _note(self, name: str, value: Any) -> None:
        if self._known[name] != value:
            self._known[name] = value
            self.changes.append((self._clock.now, name, value))
