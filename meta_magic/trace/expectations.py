"""What a user can require of a recording: limits, and shapes that modules return.

``meta-magic check --budget "params<7e9, peak_nbytes<80GB"`` and the pytest marker read
their limits by ``parse_budget`` and compare them by ``find_overruns``. The pytest
fixture compares shapes by ``find_misshapen``. Without this file a check could only say
whether a model runs, not whether it stays small enough.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from types import EllipsisType
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from meta_magic.errors import BudgetError
from meta_magic.trace.modules import count_bytes, count_elements
from meta_magic.trace.units import (
    format_bytes,
    format_count,
    format_flops,
    format_shape,
)

if TYPE_CHECKING:
    from meta_magic.trace.calls import ModuleCall
    from meta_magic.trace.trace import Trace

CHECK_SECONDS: Final = 300.0
"""The time limit of a check; a longer one allows values to take longer, too."""


class Quantity(NamedTuple):
    """A number of a recording that a budget can limit."""

    help: str
    count: "Callable[[Trace], int]"
    format: Callable[[int], str]


QUANTITIES: Final[Mapping[str, Quantity]] = {
    "params": Quantity(
        "elements of all parameters, tied ones counted once",
        lambda trace: count_elements(trace.modules, "parameter"),
        format_count,
    ),
    "param_nbytes": Quantity(
        "their bytes",
        lambda trace: count_bytes(trace.modules, "parameter"),
        format_bytes,
    ),
    "buffer_nbytes": Quantity(
        "bytes of all buffers",
        lambda trace: count_bytes(trace.modules, "buffer"),
        format_bytes,
    ),
    "peak_nbytes": Quantity(
        "most bytes of storages that are alive at once, on all devices",
        lambda trace: trace.memory.peak_nbytes,
        format_bytes,
    ),
    "flops": Quantity(
        "floating-point operations, 2 for each multiply-add",
        lambda trace: trace.flops,
        format_flops,
    ),
    "ops": Quantity("operator calls", lambda trace: len(trace.ops), format_count),
}
"""The quantities by the names that a budget uses."""

DECIMAL: Final = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "P": 10**15}
UNITS: Final = {
    **DECIMAL,
    "B": 10**9,
    **{f"{unit}B": size for unit, size in DECIMAL.items() if unit},
    **{f"{unit}IB": 2 ** (10 * power) for power, unit in enumerate("KMGTP", 1)},
}
"""Factors of the units that may follow a number, in upper case."""

AMOUNT: Final = re.compile(
    r"\s*(?P<number>[\d_]*\.?[\d_]+(?:e[+-]?\d+)?)\s*(?P<unit>[a-z]*)\s*", re.IGNORECASE
)
LIMIT: Final = re.compile(r"\s*(?P<name>\w+)\s*(?P<sign><=?)(?P<most>.*)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """One limit of a budget.

    Attributes:
        is_below: Whether the value must be below ``most``, not equal to it.
    """

    quantity: str
    most: float
    is_below: bool = False

    def __str__(self) -> str:
        most = QUANTITIES[self.quantity].format(int(self.most))
        return f"{self.quantity} {'<' if self.is_below else '<='} {most}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Overrun:
    """A limit that a recording exceeds, and the measured value."""

    limit: Limit
    value: int

    def __str__(self) -> str:
        name = self.limit.quantity
        value = QUANTITIES[name].format(self.value)
        return f"{name} is {value} ({self.value:,}), and the budget is {self.limit}"


def parse_budget(text: str) -> tuple[Limit, ...]:
    """Return the limits that a text such as ``params<7e9, peak_nbytes<=80GB`` names."""
    return tuple(map(_parse_limit, text.split(",")))


def _parse_limit(text: str) -> Limit:
    found = LIMIT.fullmatch(text)
    most = None if found is None else parse_amount(found["most"])
    if found is None or most is None:
        raise BudgetError(
            f"{text.strip()!r} is no limit; write one as params<7e9, or as "
            "peak_nbytes<=80GB"
        )
    return make_limit(found["name"], most, is_below=found["sign"] == "<")


def parse_amount(text: str) -> float | None:
    """Return the number in a text such as ``80GB``; None if there is none."""
    found = AMOUNT.fullmatch(text)
    unit = None if found is None else UNITS.get(found["unit"].upper())
    return None if found is None or unit is None else float(found["number"]) * unit


def make_limit(quantity: str, most: float, *, is_below: bool = False) -> Limit:
    """Return a limit; raise a ``BudgetError`` if there is no such quantity."""
    if quantity not in QUANTITIES:
        known = ", ".join(QUANTITIES)
        raise BudgetError(
            f"{quantity!r} is no quantity of a budget; these are: {known}"
        )
    return Limit(quantity=quantity, most=most, is_below=is_below)


def measure(trace: "Trace") -> dict[str, int]:
    """Return all quantities of a recording, by their names."""
    return {name: quantity.count(trace) for name, quantity in QUANTITIES.items()}


def find_overruns(trace: "Trace", limits: Iterable[Limit]) -> tuple[Overrun, ...]:
    """Return the limits that a recording exceeds, in their order."""
    counted = ((limit, QUANTITIES[limit.quantity].count(trace)) for limit in limits)
    return tuple(
        Overrun(limit=limit, value=value)
        for limit, value in counted
        if value > limit.most or (limit.is_below and value == limit.most)
    )


Expected: TypeAlias = Sequence[int | EllipsisType | None]
"""A size for each dimension: None for any, ``...`` for any number of dimensions."""

WILD: Final = {"**": ".*", "*": "[^.]*"}
"""Regular expressions of wildcards: ``*`` is one level of a name, ``**`` any number."""


def find_misshapen(
    calls: Mapping[str, Sequence["ModuleCall"]], expected: Mapping[str, Expected]
) -> Iterator[str]:
    """Yield a message for each module that returned another shape than expected."""
    for pattern, shape in expected.items():
        found = [name for name in calls if matches_name(pattern, name)]
        if not found:
            yield _describe_missing(pattern, list(calls))
        for name in found:
            yield from _check_calls(name, calls[name], shape)


def matches_name(pattern: str, name: str) -> bool:
    """Whether a pattern matches the name of a module."""
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


def _check_calls(
    name: str, calls: Sequence["ModuleCall"], expected: Expected
) -> Iterator[str]:
    sizes = ["any" if s is None else "..." if s is ... else str(s) for s in expected]
    for call in calls:
        shapes = [tensor.shape for _, tensor in call.outputs[:1]]
        if not any(matches_shape(expected, shape) for shape in shapes):
            made = format_shape(shapes[0]) if shapes else "no tensor"
            where = "" if call.line is None else f" in line {call.line}"
            yield (
                f"{name or 'the model'} ({call.class_name}) returned {made}{where}, "
                f"not ({', '.join(sizes)}{',' if len(sizes) == 1 else ''})"
            )


def _describe_missing(pattern: str, names: Sequence[str]) -> str:
    near = get_close_matches(pattern, names, n=3, cutoff=0.3) or names[:3]
    listed = ", ".join(repr(name) if name else "'' (the model)" for name in near)
    listed += ", ..." if len(near) < len(names) else ""
    listed = listed or "none"
    return f"no module that was called is named {pattern!r}; called were {listed}"
