"""Integers and floats that know where they come from, through Python's arithmetic.

After ``n = 4; x = torch.ones(n * 2)``, the size 8 knows that it is ``n * 2`` and that n
is written in line 1. :class:`TracedInt` is a subclass of ``int``, so it passes through
torch's Python code, attributes of modules and configurations. The origin is lost where
C makes a new number, as in ``int()`` and ``range``, which are replaced below.
"""

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

import torch
from torch import Tensor

from meta_magic.trace.signature import Span


class Written(NamedTuple):
    """The origin of a number that is written in the block's code.

    Attributes:
        number: The index of the literal.
    """

    number: int


class SizeOf(NamedTuple):
    """The origin of a number that is the size of a tensor."""

    tensor: Any
    dim: int


class Given(NamedTuple):
    """The origin of a number that a variable has when the block starts."""

    name: str


class Worked(NamedTuple):
    """The origin of a number that arithmetic made.

    Attributes:
        formula: Python code, with ``{}`` for each part.
    """

    formula: str
    parts: tuple[Any, ...]


class Returned(NamedTuple):
    """The origin of a number that an expression of the block returned: ``len(words)``.

    Attributes:
        span: The expression's position: first line and column, last line and column.
    """

    span: Span


Origin: TypeAlias = Written | SizeOf | Given | Worked | Returned


class TracedNumber:
    """Copies of a traced number keep its origin; pickling drops it."""

    origin: Origin

    def __reduce__(self) -> tuple[Any, ...]:
        return PLAIN[type(self)], (strip(self),)

    def __copy__(self) -> "TracedNumber":
        return self

    def __deepcopy__(self, _: object) -> "TracedNumber":
        return self


class TracedInt(TracedNumber, int):
    """An integer with an origin."""


class TracedFloat(TracedNumber, float):
    """A float with an origin, as a true division returns."""


TRACED: Final[Mapping[type, type]] = {int: TracedInt, float: TracedFloat}
PLAIN: Final[Mapping[type, type]] = {TracedInt: int, TracedFloat: float}

NEUTRAL: Final = frozenset({("+", 0), ("*", 1), ("-", 0), ("//", 1)})
"""``x + 0``, ``x * 1``, ``x - 0`` and ``x // 1`` are ``x``, and keep its origin."""

SYMMETRIC: Final = frozenset({"+", "*"})
"""Operators whose 0 or 1 may also be on the left, as in ``sum`` and ``prod``."""


def trace_number(value: Any, origin: Origin) -> Any:
    """Return a number with an origin; any other value unchanged."""
    kind = TRACED.get(type(value))
    if kind is None:
        return value
    traced = kind(value)
    traced.origin = origin
    return traced


def trace_returned(value: Any, span: Span) -> Any:
    """Give the integers that an expression returned it as origin, if they have none."""
    if type(value) is tuple:
        return tuple(trace_returned(item, span) for item in value)
    is_own = type(value) is TracedInt and isinstance(value.origin, Returned)
    if is_own and value.origin.span[0] == span[0]:  # ``x.shape`` of ``x.shape[1]``
        value = strip(value)
    return trace_number(value, Returned(span)) if type(value) is int else value


def origin_of(value: object) -> Origin | None:
    """Return the origin of a number; None if it has none."""
    return value.origin if isinstance(value, (TracedInt, TracedFloat)) else None


def strip(value: Any) -> Any:
    """Return a number without its origin; any other value unchanged."""
    kind = PLAIN.get(type(value))
    return value if kind is None else kind(value)


def strip_nested(value: Any) -> Any:
    """Return arguments in which no number has an origin."""
    kind = type(value)
    if kind in PLAIN:
        return PLAIN[kind](value)
    if kind in (list, tuple):
        return kind(map(strip_nested, value))
    if kind is torch.Size:
        return torch.Size(map(strip, value))
    if kind is dict:
        return {key: strip_nested(item) for key, item in value.items()}
    if kind is slice:
        return slice(*map(strip, (value.start, value.stop, value.step)))
    return value


LOST: Final[dict[int, Any]] = {}
"""By value, integers that ``int`` made of traced floats in code outside the block."""

LEAST_LOST: Final = 5
"""A smaller integer is more often a literal of that code, as the 4 of ``4 * dim``."""


def regain(value: Any) -> Any:
    """Return the traced integer that a plain one may have been, or the plain one."""
    is_lost = type(value) is int and value >= LEAST_LOST
    return LOST.get(value, value) if is_lost else value


def _work(
    symbol: str, function: Callable[[Any, Any], Any], left: Any, right: Any
) -> Any:
    """Return the result of arithmetic with at least one traced number."""
    if not isinstance(left, (int, float)) or not isinstance(right, (int, float)):
        return NotImplemented
    if type(right) is int and (symbol, right) in NEUTRAL:
        return left
    if type(left) is int and symbol in SYMMETRIC and (symbol, left) in NEUTRAL:
        return right
    both = regain(left), regain(right)
    parts = [number for number in both if type(number) in PLAIN]
    sides = ["{}" if type(number) in PLAIN else f"{number}" for number in both]
    formula = (
        f"power({', '.join(sides)})" if symbol == "**" else f" {symbol} ".join(sides)
    )
    value = function(strip(left), strip(right))
    return trace_number(value, Worked(formula, tuple(parts)))


def _install(name: str, symbol: str) -> None:
    """Define an operator of Python for traced numbers."""
    function = getattr(operator, name)

    def forward(self: Any, other: Any) -> Any:
        return _work(symbol, function, self, other)

    def backward(self: Any, other: Any) -> Any:
        return _work(symbol, function, other, self)

    for kind in PLAIN:
        setattr(kind, f"__{name}__", forward)
        setattr(kind, f"__r{name}__", backward)


def _install_rounding(name: str, formula: str) -> None:
    """Define a rounding or a change of sign for traced numbers."""

    def change(self: Any, *args: Any) -> Any:
        value = getattr(strip(self), name)(*args)
        return trace_number(value, Worked(formula, (self,)))

    for kind in PLAIN:
        setattr(kind, name, change)


def _lose(self: TracedFloat) -> int:
    """Return the plain integer that ``int`` needs; ``regain`` finds its origin."""
    value = int(strip(self))
    LOST[value] = trace_number(value, Worked("int({})", (self,)))
    return value


setattr(TracedFloat, "__int__", _lose)  # noqa: B010  as the others are set, below

for name, symbol in (
    *(("add", "+"), ("sub", "-"), ("mul", "*"), ("truediv", "/"), ("pow", "**")),
    *(("floordiv", "//"), ("mod", "%")),
):
    _install(name, symbol)
for name, formula in (
    *(("__neg__", "-{}"), ("__abs__", "abs({})"), ("__round__", "round({})")),
    *(("__floor__", "floor({})"), ("__ceil__", "ceil({})")),
):
    _install_rounding(name, formula)


def _as_integer(value: Any, *rest: Any) -> Any:
    """Replace ``int``, which makes a new number."""
    if type(value) is TracedInt and not rest:
        return value
    made = int(strip(value), *rest)
    is_traced = type(value) is TracedFloat
    return trace_number(made, Worked("int({})", (value,))) if is_traced else made


def _length_of(value: Any) -> int:
    """Replace ``len``, which makes a new number."""
    if isinstance(value, Tensor) and value.dim():
        return value.shape[0]
    return len(value)


class TracedRange(Sequence[Any]):
    """A range whose numbers have origins."""

    def __init__(self, start: Any, stop: Any, step: Any) -> None:
        self._start, self._step = start, step
        self._plain = range(strip(start), strip(stop), strip(step))

    def __len__(self) -> int:
        return len(self._plain)

    def __getitem__(self, at: Any) -> Any:
        if isinstance(at, slice):
            return self._plain[at]
        count = range(len(self._plain))[at]
        return self._start + count * self._step if count else self._start


def _range_of(*ends: Any) -> Any:
    """Replace ``range``, which makes new numbers."""
    plain = slice(*ends)
    start = 0 if plain.start is None else plain.start
    step = 1 if plain.step is None else plain.step
    if not ends or {type(start), type(step)} == {int}:
        return range(*map(strip, ends))
    return TracedRange(start, plain.stop, step)


REPLACEMENTS: Final[Mapping[Any, Callable[..., Any]]] = {
    int: _as_integer,
    len: _length_of,
    range: _range_of,
}
"""Functions in C that make numbers, with their replacements."""
