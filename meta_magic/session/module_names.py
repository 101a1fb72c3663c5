"""Find how a module is written that no variable holds itself, such as ``layers[0]``.

Nothing of the user's runs for it: what an object, list or dictionary holds is read as
the interpreter does, past any method of its class.
"""

from collections import deque
from collections.abc import Collection, Iterator, Mapping
from itertools import islice
from types import GetSetDescriptorType, MemberDescriptorType, ModuleType
from typing import Any, Final

__all__ = ["IPYTHONS", "find_names", "read_attributes", "walk_held"]

MAX_DEPTH: Final = 3
"""Brackets and dots in a name."""

MAX_HELD: Final = 1_000
"""Values of one list, dictionary or object that are looked at."""

MAX_SEEN: Final = 10_000
"""Values that are looked at in all."""

KEYS: Final = frozenset({str, int, bool})
"""Types of keys that are written without asking the user's code."""

READERS: Final = frozenset({GetSetDescriptorType, MemberDescriptorType})
"""How the interpreter itself reads a ``__dict__``."""

IPYTHONS: Final = frozenset({"In", "Out"})

bases_of = type.__dict__["__mro__"].__get__
names_of = type.__dict__["__dict__"].__get__


def find_names(
    namespace: Mapping[str, object], wanted: Collection[int]
) -> dict[int, str]:
    """Return the shortest way to write each module, by ``id``, if one is found.

    Args:
        namespace: Variables. Names that begin with ``_`` are not looked at.
        wanted: The ``id`` of the modules to be named.
    """
    names: dict[int, str] = {}
    variables = [
        (name, value, 0)
        for name, value in list(namespace.items())
        if not name.startswith("_") and name not in IPYTHONS
    ]
    to_read = deque(variables)
    seen = {id(value) for _, value, _ in variables}
    while to_read and len(names) < len(wanted) and len(seen) < MAX_SEEN:
        name, value, depth = to_read.popleft()
        for path, held in islice(walk_held(value), MAX_HELD):
            if id(held) in seen:
                continue
            seen.add(id(held))
            if id(held) in wanted:
                names[id(held)] = name + path
            elif depth + 1 < MAX_DEPTH:
                to_read.append((name + path, held, depth + 1))
    return names


def walk_held(value: Any) -> Iterator[tuple[str, object]]:
    """Yield what a value holds, and how that is written behind its name."""
    kind = type(value)
    if issubclass(kind, list | tuple):
        base = list if issubclass(kind, list) else tuple
        items = [*islice(base.__iter__(value), MAX_HELD)]
        yield from ((f"[{index}]", held) for index, held in enumerate(items))
    elif issubclass(kind, dict):
        pairs = [*islice(dict.items(value), MAX_HELD)]
        yield from ((f"[{key!r}]", held) for key, held in pairs if type(key) in KEYS)
    elif not issubclass(kind, type | ModuleType):
        attributes = [*islice(read_attributes(value).items(), MAX_HELD)]
        yield from ((f".{n}", held) for n, held in attributes if not n.startswith("_"))


def read_attributes(value: object) -> dict[str, Any]:
    """Return the ``__dict__`` of an object; {} if it has none, or one of its own."""
    for base in bases_of(type(value)):
        reader = names_of(base).get("__dict__")
        if reader is not None:
            return reader.__get__(value) if type(reader) in READERS else {}
    return {}
