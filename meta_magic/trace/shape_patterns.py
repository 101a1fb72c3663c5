"""Shapes that modules are to return, by patterns of their names."""

import re
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from types import EllipsisType
from typing import TYPE_CHECKING, Final, TypeAlias

from meta_magic.trace.units import format_shape

if TYPE_CHECKING:
    from meta_magic.trace.calls import ModuleCall

__all__ = ["Expected", "find_misshapen"]

Expected: TypeAlias = Sequence[int | EllipsisType | None]
"""A size for each dimension: None for any, ``...`` for any number of dimensions."""

WILD: Final = {"**": ".*", "*": "[^.]*"}
"""What stands for a part of a name: of one level, or of any number of them."""


def find_misshapen(
    calls: Mapping[str, Sequence["ModuleCall"]], expected: Mapping[str, Expected]
) -> Iterator[str]:
    """Yield in words what modules returned otherwise than expected.

    Args:
        calls: The calls of each module, by its name.
        expected: The shape of the first tensor that is returned, by patterns of names:
            ``*`` stands for one part of a name, ``**`` for any number of them.
    """
    for pattern, shape in expected.items():
        found = [name for name in calls if matches_name(pattern, name)]
        if not found:
            yield describe_missing(pattern, list(calls))
        for name in found:
            yield from check_calls(name, calls[name], shape)


def matches_name(pattern: str, name: str) -> bool:
    """Whether a pattern stands for the name of a module."""
    parts = re.split(r"(\*+)", pattern)
    return bool(re.fullmatch("".join(WILD.get(p) or re.escape(p) for p in parts), name))


def matches_shape(expected: Expected, shape: Sequence[int]) -> bool:
    """Whether a shape is as expected."""
    if ... in expected:
        at = list(expected).index(...)
        before, after = expected[:at], expected[at + 1 :]
        n_any = len(shape) - len(before) - len(after)
        expected = (*before, *[None] * max(n_any, 0), *after)
    return len(expected) == len(shape) and all(
        wanted in (None, size) for wanted, size in zip(expected, shape, strict=True)
    )


def check_calls(
    name: str, calls: Sequence["ModuleCall"], expected: Expected
) -> Iterator[str]:
    """Yield in words which calls of a module returned another shape."""
    for call in calls:
        shapes = [tensor.shape for _, tensor in call.outputs[:1]]
        if not any(matches_shape(expected, shape) for shape in shapes):
            made = format_shape(shapes[0]) if shapes else "no tensor"
            where = "" if call.line is None else f" in line {call.line}"
            yield (
                f"{name or 'the model'} ({call.class_name}) returned {made}{where}, "
                f"not {write_expected(expected)}"
            )


def write_expected(expected: Expected) -> str:
    """Return a shape as it is expected, in words."""
    sizes = ("any" if s is None else "..." if s is ... else str(s) for s in expected)
    return f"({', '.join(sizes)}{',' if len(expected) == 1 else ''})"


def describe_missing(pattern: str, names: Sequence[str]) -> str:
    """Return in words that no module was called that is so named."""
    near = get_close_matches(pattern, names, n=3, cutoff=0.3) or names[:3]
    words = ", ".join(repr(name) if name else "'' (the model)" for name in near)
    words += ", ..." if len(near) < len(names) else ""
    words = words or "none"
    return f"no module that was called is named {pattern!r}; called were {words}"
