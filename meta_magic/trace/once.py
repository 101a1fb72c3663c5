"""Functions that are computed once for each object, which may still be deleted.

``functools.lru_cache`` would keep a class of the user alive, and by its methods the
tensors that they use.
"""

import weakref
from collections.abc import Callable
from typing import Final, TypeVar

MAX_KNOWN: Final = 10_000
"""Of how many objects a function keeps what it returned."""

Given = TypeVar("Given")
Result = TypeVar("Result")


def once_for_each(make: Callable[[Given], Result]) -> Callable[[Given], Result]:
    """Return a function that is computed once for each object that it is given.

    An object is known by its identity. It stays alive if the result refers to it.
    """
    known: dict[int, tuple[weakref.ref[Given], Result]] = {}

    def find(given: Given) -> Result:
        found = known.get(id(given))
        if found is None or found[0]() is not given:
            if len(known) >= MAX_KNOWN:
                known.clear()
            found = known[id(given)] = weakref.ref(given), make(given)
        return found[1]

    return find
