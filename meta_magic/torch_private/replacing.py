"""Replace functions while a recording runs, also if others overlap with it."""

import threading
from collections.abc import Callable, Mapping
from functools import wraps
from inspect import isfunction
from typing import Any, Final, TypeAlias

from meta_magic.torch_private.replaced import Replaceable

__all__ = [
    "PROFILE_OF_THREADS",
    "Methods",
    "Replacements",
    "call_with_original",
    "find_builtin_of",
]

PROFILE_OF_THREADS: Final = (threading, "_profile_hook")
"""What ``threading.setprofile`` sets. Without it the watch on threads stays when
recordings of two threads end in another order than they began."""

Methods: TypeAlias = Mapping[str, Callable[..., Any]]
"""By the name of a function: what it is. Takes that function, then its arguments."""


class Swapped:
    """Attributes of a module or class that are others while any recording runs.

    Args:
        owner: The module or class.
        values: What they are then, by name: the same in all recordings.
    """

    def __init__(self, owner: Any, values: Mapping[str, Any]) -> None:
        self._owner = owner
        self._values = values
        self._held: Mapping[str, Any] = {}
        self._n_users = 0

    def enter(self) -> None:
        """Have them be others."""
        if not self._n_users:
            there = vars(self._owner)  # a static method as it is held, say
            self._held = {n: there[n] for n in self._values if n in there}
            for name, value in self._values.items():
                setattr(self._owner, name, value)
        self._n_users += 1

    def leave(self) -> None:
        """Have them be what they were, unless another recording runs.

        What somebody else replaced meanwhile stays so.
        """
        self._n_users -= 1
        if not self._n_users:
            there = vars(self._owner)
            for name, value in self._values.items():
                if there.get(name) is not value:
                    continue
                if name in self._held:
                    setattr(self._owner, name, self._held[name])
                else:  # it is of a class below
                    delattr(self._owner, name)


class StandIns(Swapped):
    """Functions of a module or class that are others on the threads that want it.

    They are built once, not for each recording: what a cell costs before its first
    line is felt in all of them. A cell may have imported one by name, and keep it.

    Args:
        owner: The module or class.
        plain: What they stand for, by name: what they are on all other threads.
    """

    def __init__(self, owner: Any, plain: Mapping[str, Any]) -> None:
        self._plain = plain
        self._of_thread: dict[int, Methods] = {}
        super().__init__(owner, {name: self._build(name) for name in plain})

    def _build(self, name: str) -> Callable[..., Any]:
        plain, find = self._plain[name], self._of_thread.get

        @wraps(plain)
        def function(*args: Any, **kwargs: Any) -> Any:
            methods = find(threading.get_ident())
            if methods is None:
                return plain(*args, **kwargs)
            return methods[name](plain, *args, **kwargs)

        made: Callable[..., Any] = stand_for(plain, function)
        return made

    def fit(self, there: Mapping[str, Any]) -> bool:
        """Whether they can stand for what is there now, on this thread, too."""
        known = self._values if self._of_thread else self._plain
        return there == known and threading.get_ident() not in self._of_thread

    def enter_here(self, methods: Methods) -> None:
        """Have them be methods on this thread."""
        self.enter()
        self._of_thread[threading.get_ident()] = methods

    def leave(self) -> None:
        """Have them be what they were on this thread."""
        del self._of_thread[threading.get_ident()]
        super().leave()


def stand_for(plain: Any, function: Any) -> Any:
    """Have ``torch.jit.script`` compile a function for the one that replaces it.

    Without it the first ``import torch.distributed.optim`` fails in a cell: torch
    scripts its optimizers, and they call what is replaced.
    """
    if isfunction(function):
        vars(function).update(__prepare_scriptable__=lambda: plain, replaced=plain)
    return function


def find_builtin_of(find: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return what finds the operator that a function is for ``torch.jit.script``."""
    return lambda function: find(getattr(function, "replaced", function))


stacks: dict[tuple[int, str], list[Any]] = {}
"""What is at each place that is replaced: first what was there, the newest last."""
stand_ins: dict[tuple[Any, ...], StandIns] = {}
swapped: dict[tuple[Any, ...], Swapped] = {}
lock = threading.RLock()


class Replacements:
    """The attributes that one recording replaced, to be put back by it.

    Recordings of two threads may end in any order: the last one leaves what was there
    before the first. To be entered, a subclass says what it replaces.
    """

    def __init__(self) -> None:
        self._made: list[tuple[Any, str, Any]] = []
        self._entered: list[Swapped] = []

    @property
    def is_entered(self) -> bool:
        """Whether anything is replaced now."""
        return bool(self._made)

    def replace(self, owner: Any, name: str, value: Any) -> None:
        """Set an attribute of a module or class."""
        with lock:
            stack = stacks.get((id(owner), name))
            if stack is None:  # a static method as it is held, say, not what it gives
                held = vars(owner).get(name, getattr(owner, name))
                stack = stacks[id(owner), name] = [held]
            stack.append(value)
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
            before = getattr(owner, name)
            self.replace(owner, name, stand_for(before, build(before)))

    def replace_here(self, owner: Any, methods: Methods) -> None:
        """Have functions be others on this thread, while they are replaced.

        Args:
            owner: The module or class.
            methods: What they are.
        """
        with lock:
            there = {name: getattr(owner, name) for name in methods}
            key = id(owner), *methods
            found = stand_ins.get(key)
            if found is None or not found.fit(there):
                found = stand_ins[key] = StandIns(owner, there)
            found.enter_here(methods)
            self._entered.append(found)

    def replace_all(self, owner: Any, values: Mapping[str, Any]) -> None:
        """Set attributes of a module or class that are the same in all recordings.

        Args:
            owner: The module or class.
            values: What they are, by name.
        """
        with lock:
            key = id(owner), *values
            found = swapped.get(key)
            if found is None:
                found = swapped[key] = Swapped(owner, values)
            found.enter()
            self._entered.append(found)

    def __exit__(self, *_: object) -> None:
        self.restore()

    def restore(self) -> None:
        """Take all of them back, but for what somebody else replaced meanwhile."""
        with lock:
            while self._entered:
                self._entered.pop().leave()
            while self._made:
                self._put_back(*self._made.pop())

    def _put_back(self, owner: Any, name: str, value: Any) -> None:
        stack = stacks[id(owner), name]
        is_newest = vars(owner).get(name) is value  # and not what a method binds
        stack.remove(value)
        if is_newest:
            setattr(owner, name, stack[-1])
        if len(stack) == 1:
            del stacks[id(owner), name]


def call_with_original(place: Replaceable, function: Callable[[], object]) -> None:
    """Call a function while a place in torch has what stood there before all blocks."""
    owner, name = place
    with lock:
        stack = stacks.get((id(owner), name))
        before = getattr(owner, name)
        if stack is not None:
            setattr(owner, name, stack[0])
        try:
            function()
        finally:
            if stack is not None:
                setattr(owner, name, before)
