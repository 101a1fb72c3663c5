"""The record of where a size comes from: steps back to the numbers in the user's code.

``print(trace.why(x, 1))`` shows ``576 = 16 * 6 * 6 by flatten (line 10)``, and below it
where 16 and 6 come from. :meth:`Lineage.predict` says what the size would be if a
written number were another.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from math import ceil, floor
from typing import Final

MAX_EXPONENT: Final = 64


def power(base: float, exponent: float) -> float:
    """Return a power; no size has a larger exponent, and Python would compute it."""
    if abs(exponent) > MAX_EXPONENT:
        raise OverflowError(exponent)
    value: float = base**exponent
    return value


FUNCTIONS: Final = {
    "power": power,
    "floor": floor,
    "ceil": ceil,
    "abs": abs,
    "round": round,
    "int": int,
    "max": max,
}
"""Functions that formulas call."""


def evaluate(formula: str, values: Iterable[float]) -> float:
    """Return the value of a formula: Python code with ``{}`` for each value."""
    shown = (f"({value})" if value < 0 else f"{value}" for value in values)
    code = compile(formula.format(*shown), "<formula>", "eval")
    value: float = eval(code, {"__builtins__": {}}, dict(FUNCTIONS))  # noqa: S307  ours
    return value


@dataclass(frozen=True, slots=True, kw_only=True)
class LineageStep:
    """A number, and how it comes from others.

    Attributes:
        value: The number.
        text: How it comes about, such as ``32 * 5 * 5 by flatten``; at the beginning of
            a chain its name, such as ``conv2.out_channels, written``.
        line: The line that made or has it; None if no line of the block does.
        column: Where it is written, in UTF-8 bytes from 0; None if it is not written.
        end_column: Where that ends.
        parts: The steps that it comes from, as indexes into those of the chain.
        formula: Python code, with ``{}`` for each part; "" if it is not known.
    """

    value: float
    text: str
    line: int | None = None
    column: int | None = None
    end_column: int | None = None
    parts: tuple[int, ...] = ()
    formula: str = ""

    @property
    def is_written(self) -> bool:
        """Whether the number is written in the block's code."""
        return self.column is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class Lineage:
    """Where a size comes from; ``print`` shows it.

    Attributes:
        name: What it is the size of, such as ``dimension 1 of x``.
        steps: The size, then all numbers that it comes from.
        caveat: What is not known about it; "" for nothing.
    """

    name: str
    steps: tuple[LineageStep, ...]
    caveat: str = ""

    @property
    def size(self) -> int:
        """The size itself."""
        return int(self.steps[0].value)

    @property
    def roots(self) -> tuple[LineageStep, ...]:
        """The written numbers that the size comes from."""
        return tuple(step for step in self.steps if step.is_written)

    def predict(self, values: Mapping[int, float]) -> float | None:
        """Return what the size would be if other numbers were written.

        Args:
            values: By index of a step, its new value.

        Returns:
            None if a formula on the way is not known.
        """
        known = dict(values)

        def find(number: int) -> float:
            if number not in known:
                step = self.steps[number]
                parts = [find(part) for part in step.parts]
                is_same = all(known[p] == self.steps[p].value for p in step.parts)
                if not (step.formula or (parts and is_same)):
                    raise LookupError
                known[number] = (
                    evaluate(step.formula, parts) if step.formula else step.value
                )
            return known[number]

        try:
            return find(0)
        except (ArithmeticError, LookupError, ValueError):
            return None

    @property
    def lines(self) -> tuple[str, ...]:
        """The chain as text: the parts of a number are below it, indented."""
        lines = []
        for depth, step, is_shown in self.walk():
            where = f" (line {step.line})" if step.line else ""
            more = " ..." if is_shown else ""
            lines.append(f"{'  ' * depth}{step.value} = {step.text}{where}{more}")
        return (*lines, *([self.caveat] if self.caveat else []))

    def walk(self) -> Iterator[tuple[int, LineageStep, bool]]:
        """Yield each part's depth and step, and whether its own were shown before."""
        alike = _number_alike(self.steps)
        shown: set[int] = set()
        todo = [(0, 0)]
        while todo:
            number, depth = todo.pop()
            step = self.steps[number]
            is_shown = alike[number] in shown and bool(step.parts)
            yield depth, step, is_shown
            if not is_shown:
                parts = {alike[part]: part for part in reversed(step.parts)}
                todo += [(part, depth + 1) for part in parts.values()]
            shown.add(alike[number])

    def __str__(self) -> str:
        return "\n".join((f"{self.name}:", *self.lines))


def _number_alike(steps: Sequence[LineageStep]) -> list[int]:
    """Return a number for each step; steps with equal text and parts share it."""
    numbers: dict[object, int] = {}

    @cache
    def find(at: int) -> int:
        step = steps[at]
        own = step.value, step.text, step.line
        return numbers.setdefault((own, *map(find, step.parts)), len(numbers))

    return [find(at) for at in range(len(steps))]
