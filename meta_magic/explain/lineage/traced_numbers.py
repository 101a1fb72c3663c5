"""Numbers that know where they come from, through all of Python's arithmetic.

A subclass of ``int`` goes through torch's Python and through libraries: sizes,
attributes of modules, configurations. It is lost where C makes a number of its own.
"""

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

import torch
from torch import Tensor


class Written(NamedTuple):
    """A number that the block's code says.

    Attributes:
        number: Which of those that it says.
    """

    number: int


class SizeOf(NamedTuple):
    """The size of a tensor.

    Attributes:
        tensor: Whatever stands for the tensor.
        dim: Which dimension, from 0.
    """

    tensor: Any
    dim: int


class Worked(NamedTuple):
    """What arithmetic made.

    Attributes:
        formula: It in Python, ``{}`` for each part.
        parts: The traced numbers in it.
    """

    formula: str
    parts: tuple[Any, ...]


Origin: TypeAlias = Written | SizeOf | Worked


class TracedInt(int):
    """An integer with an origin."""

    origin: Origin

    def __reduce__(self) -> tuple[Any, ...]:
        return int, (int(self),)

    def __copy__(self) -> "TracedInt":
        return self

    def __deepcopy__(self, _: object) -> "TracedInt":
        return self


class TracedFloat(float):
    """A float with an origin, as true division makes of integers."""

    origin: Origin

    def __reduce__(self) -> tuple[Any, ...]:
        return float, (float(self),)

    def __copy__(self) -> "TracedFloat":
        return self

    def __deepcopy__(self, _: object) -> "TracedFloat":
        return self


TRACED: Final[Mapping[type, type]] = {int: TracedInt, float: TracedFloat}
PLAIN: Final[Mapping[type, type]] = {TracedInt: int, TracedFloat: float}

NEUTRAL: Final = frozenset({("+", 0), ("*", 1), ("-", 0), ("//", 1)})
"""What changes nothing on the right of an operator."""

SYMMETRIC: Final = frozenset({"+", "*"})
"""What changes nothing on the left neither: ``sum`` and ``prod`` begin with it."""


def trace_number(value: Any, origin: Origin) -> Any:
    """Return a number with an origin; what is no plain number as it is."""
    kind = TRACED.get(type(value))
    if kind is None:
        return value
    traced = kind(value)
    traced.origin = origin
    return traced


def origin_of(value: object) -> Origin | None:
    """Return where a number comes from; None if it does not know."""
    return value.origin if isinstance(value, (TracedInt, TracedFloat)) else None


def strip(value: Any) -> Any:
    """Return a number without its origin; anything else as it is."""
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
"""What ``int`` made of traced numbers in code that is not rewritten, by its value."""

LEAST_LOST: Final = 5
"""Less is more often a number that such code says itself, as the 4 of ``4 * dim``."""


def regain(value: Any) -> Any:
    """Return a plain integer as the traced one that was lost, if it may be that."""
    is_lost = type(value) is int and value >= LEAST_LOST
    return LOST.get(value, value) if is_lost else value


def work(
    symbol: str, function: Callable[[Any, Any], Any], left: Any, right: Any
) -> Any:
    """Return what arithmetic makes of two numbers of which one is traced."""
    if not isinstance(left, (int, float)) or not isinstance(right, (int, float)):
        return NotImplemented
    if type(right) is int and (symbol, right) in NEUTRAL:
        return left
    if type(left) is int and symbol in SYMMETRIC and (symbol, left) in NEUTRAL:
        return right
    both = regain(left), regain(right)
    parts = [number for number in both if type(number) in PLAIN]
    sides = ("{}" if type(number) in PLAIN else f"{number}" for number in both)
    value = function(strip(left), strip(right))
    return trace_number(value, Worked(f" {symbol} ".join(sides), tuple(parts)))


def install(name: str, symbol: str) -> None:
    """Have traced numbers know what an operator of Python makes of them."""
    function = getattr(operator, name)

    def forward(self: Any, other: Any) -> Any:
        return work(symbol, function, self, other)

    def backward(self: Any, other: Any) -> Any:
        return work(symbol, function, other, self)

    for kind in PLAIN:
        setattr(kind, f"__{name}__", forward)
        setattr(kind, f"__r{name}__", backward)


def install_rounding(name: str, formula: str) -> None:
    """Have traced numbers know what rounds them, or changes their sign."""

    def change(self: Any, *args: Any) -> Any:
        value = getattr(strip(self), name)(*args)
        return trace_number(value, Worked(formula, (self,)))

    for kind in PLAIN:
        setattr(kind, name, change)


def lose(self: TracedFloat) -> int:
    """Return a plain integer, as ``int`` asks for; it is known when it is met again."""
    value = int(strip(self))
    LOST[value] = trace_number(value, Worked("int({})", (self,)))
    return value


setattr(TracedFloat, "__int__", lose)  # noqa: B010  as the others are set, below

for name, symbol in (
    *(("add", "+"), ("sub", "-"), ("mul", "*"), ("truediv", "/"), ("pow", "**")),
    *(("floordiv", "//"), ("mod", "%")),
):
    install(name, symbol)
for name, formula in (
    *(("__neg__", "-{}"), ("__abs__", "abs({})"), ("__round__", "round({})")),
    *(("__floor__", "floor({})"), ("__ceil__", "ceil({})")),
):
    install_rounding(name, formula)


def as_integer(value: Any, *rest: Any) -> Any:
    """Stand for ``int``, which would make a number of its own."""
    if type(value) is TracedInt and not rest:
        return value
    made = int(strip(value), *rest)
    is_traced = type(value) is TracedFloat
    return trace_number(made, Worked("int({})", (value,))) if is_traced else made


def length_of(value: Any) -> int:
    """Stand for ``len``, which must return a number of its own."""
    if isinstance(value, Tensor) and value.dim():
        return value.shape[0]
    return len(value)


class TracedRange(Sequence[Any]):
    """A range whose numbers know where it begins, and by which step they go on.

    Args:
        start: The first number.
        stop: Where it ends.
        step: From one to the next.
    """

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


def range_of(*ends: Any) -> Any:
    """Stand for ``range``, which makes numbers of its own."""
    plain = slice(*ends)
    start = 0 if plain.start is None else plain.start
    step = 1 if plain.step is None else plain.step
    if not ends or {type(start), type(step)} == {int}:
        return range(*map(strip, ends))
    return TracedRange(start, plain.stop, step)


STAND_INS: Final[Mapping[Any, Callable[..., Any]]] = {
    int: as_integer,
    len: length_of,
    range: range_of,
}
"""What is called instead of functions in C that make numbers."""
