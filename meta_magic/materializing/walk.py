"""Find the tensors and modules that an object holds, whatever it is.

A list, a dictionary, a dataclass, a scheduler of diffusers, a hook with what its
closure holds: nothing of the user's runs to read them. Modules are yielded, not looked
into: ``targets`` knows what they hold. Read ``walk`` first.
"""

import weakref
from collections import deque
from collections.abc import Iterator
from functools import partial
from types import (
    CodeType,
    FrameType,
    FunctionType,
    GeneratorType,
    MemberDescriptorType,
    MethodType,
    ModuleType,
    NoneType,
)
from typing import Any, Final

import torch
from torch import Tensor, nn

from meta_magic.session.operand_names import bases_of, names_of, read_attributes

__all__ = ["PLAIN", "walk"]

MAX_SEEN: Final = 100_000
"""Objects that are looked into in all."""

PLAIN: Final = frozenset(
    {bool, int, float, complex, str, bytes, bytearray, NoneType, range, slice}
    | {torch.dtype, torch.device, torch.Size, torch.layout, torch.Generator}
)
CLOSED: Final = (type, ModuleType, CodeType, FrameType, GeneratorType, weakref.ref)
"""Types that are not looked into, nor are their subclasses: they lead anywhere."""

SHELLS: Final = ("IPython", "ipykernel", "traitlets", "meta_magic")

ORDERED: Final[tuple[Any, ...]] = (list, tuple, deque, set, frozenset)
KEYS: Final = frozenset({str, int, bool})


def walk(
    value: Any, path: str = "", seen: set[int] | None = None
) -> Iterator[tuple[str, Tensor | nn.Module]]:
    """Yield each tensor and module that a value is or holds, and how one writes it.

    The nearest first; at every place of the nearest objects that hold it.

    Args:
        value: Any object.
        path: How it is written.
        seen: The ``id`` of what was looked into already, which takes what is now.
    """
    seen = set() if seen is None else seen
    queue = deque([(path, value)])
    kept: list[object] = []  # so that no other object gets the id of one of these
    while queue and len(seen) < MAX_SEEN:
        path, value = queue.popleft()
        kind = type(value)
        if issubclass(kind, Tensor | nn.Module):
            yield path, value
        elif id(value) not in seen and (is_open(kind) or not kept):
            seen.add(id(value))
            kept.append(value)
            held = list_held(value, kind)
            queue += (
                (path + step, one) for step, one in held if type(one) not in PLAIN
            )


def is_open(kind: type) -> bool:
    """Whether objects of a class are looked into: not those of a shell, or of ours."""
    if kind in PLAIN or issubclass(kind, CLOSED):
        return False
    return kind.__module__.partition(".")[0] not in SHELLS


def list_held(value: Any, kind: type) -> Iterator[tuple[str, object]]:
    """Yield what an object holds itself, and how that is written behind its name."""
    if issubclass(kind, dict):
        pairs = list(dict.items(value))
        yield from ((name_key(i, key), held) for i, (key, held) in enumerate(pairs))
    for base in (base for base in ORDERED if issubclass(kind, base)):
        yield from ((f"[{i}]", held) for i, held in enumerate(base.__iter__(value)))
    if issubclass(kind, FunctionType):
        yield from list_enclosed(value)
    elif issubclass(kind, MethodType):
        yield from ((".__self__", value.__self__), ("", value.__func__))
    elif issubclass(kind, partial):
        yield from (("", value.func), (".args", value.args), ("", value.keywords))
    else:
        yield from ((f".{n}", held) for n, held in list(read_attributes(value).items()))
        yield from list_slots(value, kind)


def name_key(index: int, key: object) -> str:
    """Return how one writes an item of a dictionary; by its place, if not by key."""
    return f"[{key!r}]" if type(key) in KEYS else f"[{index}]"


def list_enclosed(function: FunctionType) -> Iterator[tuple[str, object]]:
    """Yield what a function's closure and its default values hold, by name."""
    code, defaults = function.__code__, function.__defaults__ or ()
    names = code.co_varnames[: code.co_argcount]
    yield from zip(
        (f".{name}" for name in names[len(names) - len(defaults) :]),
        defaults,
        strict=True,
    )
    yield from ((f".{n}", held) for n, held in (function.__kwdefaults__ or {}).items())
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
        try:
            yield f".{name}", cell.cell_contents
        except ValueError:  # nothing was put into it yet
            continue


def list_slots(value: Any, kind: type) -> Iterator[tuple[str, object]]:
    """Yield what an object holds in the slots of its class."""
    for base in bases_of(kind):
        slots = names_of(base).get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            member = names_of(base).get(name)
            if type(member) is MemberDescriptorType:
                try:
                    yield f".{name}", member.__get__(value)
                except AttributeError:  # nothing was put into it yet
                    continue
