"""Replace functions while a recording runs, also if others overlap with it."""

import threading
from collections.abc import Callable
from functools import wraps
from typing import Any, Final

from meta_magic.torch_private.replaced import Replaceable

__all__ = ["PROFILE_OF_THREADS", "Replacements"]

PROFILE_OF_THREADS: Final = (threading, "_profile_hook")
"""What ``threading.setprofile`` sets. Without it the watch on threads stays when
recordings of two threads end in another order than they began."""


class Replaced:
    """An attribute that some recordings replaced.

    Attributes:
        original: What it was, as its owner holds it.
        stack: What it was replaced by, the newest last.
    """

    def __init__(self, owner: Any, name: str) -> None:
        self.original = vars(owner)[name]  # a static method, say: not what it gives
        self.stack: list[Any] = []


replaced_by_place: dict[tuple[int, str], Replaced] = {}
lock = threading.RLock()


class Replacements:
    """The attributes that one recording replaced, to be put back by it.

    Recordings of two threads may end in any order: the last one leaves what was there
    before the first. To be entered, a subclass says what it replaces.
    """

    def __init__(self) -> None:
        self._made: list[tuple[Any, str, Any]] = []

    @property
    def is_entered(self) -> bool:
        """Whether anything is replaced now."""
        return bool(self._made)

    def replace(self, owner: Any, name: str, value: Any) -> None:
        """Set an attribute of a module or class."""
        with lock:
            place = id(owner), name
            if place not in replaced_by_place:
                replaced_by_place[place] = Replaced(owner, name)
            replaced_by_place[place].stack.append(value)
            self._made.append((owner, name, value))
            setattr(owner, name, value)

    def wrap(self, place: Replaceable, build: Callable[[Any], Any]) -> None:
        """Replace an attribute by what is built from it.

        Args:
            place: The module or class, and the name in it.
            build: Takes what is there, and returns what is to be there.
        """
        owner, name = place
        with lock:
            self.replace(owner, name, build(getattr(owner, name)))

    def replace_here(self, place: Replaceable, method: Callable[..., Any]) -> None:
        """Have a function be another one on this thread, while it is replaced.

        Else it is what it was: a cell may have imported it by name.

        Args:
            place: The module or class, and the name in it.
            method: Takes what is there, then its arguments.
        """
        thread = threading.get_ident()

        def build(plain: Any) -> Any:
            @wraps(plain)
            def replaced(*args: Any, **kwargs: Any) -> Any:
                if threading.get_ident() != thread or not self.is_entered:
                    return plain(*args, **kwargs)
                return method(plain, *args, **kwargs)

            return replaced

        self.wrap(place, build)

    def __exit__(self, *_: object) -> None:
        self.restore()

    def restore(self) -> None:
        """Take all of them back, but for what somebody else replaced meanwhile."""
        with lock:
            while self._made:
                self._put_back(*self._made.pop())

    def _put_back(self, owner: Any, name: str, value: Any) -> None:
        place = id(owner), name
        replaced = replaced_by_place[place]
        is_newest = vars(owner).get(name) is value  # and not what a method binds
        replaced.stack.remove(value)
        if is_newest:
            left = replaced.stack[-1:] or [replaced.original]
            setattr(owner, name, left[0])
        if not replaced.stack:
            del replaced_by_place[place]
