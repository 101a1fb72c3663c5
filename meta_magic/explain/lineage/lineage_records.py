"""Where a size comes from: a chain of steps back to the numbers that are written."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from math import ceil, floor
from typing import Final

FUNCTIONS: Final = {
    "floor": floor,
    "ceil": ceil,
    "abs": abs,
    "round": round,
    "int": int,
    "max": max,
}
"""What formulas call."""


def evaluate(formula: str, values: Iterable[float]) -> float:
    """Return what a formula comes to.

    Args:
        formula: It in Python, ``{}`` for each value.
        values: The values.
    """
    shown = (f"({value})" if value < 0 else f"{value}" for value in values)
    code = compile(formula.format(*shown), "<formula>", "eval")
    value: float = eval(code, {"__builtins__": {}}, dict(FUNCTIONS))  # noqa: S307  ours
    return value


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A number, and how it comes from others.

    Attributes:
        value: The number.
        text: How it comes about, such as ``32 * 5 * 5 by flatten``; or, of one that a
            chain begins with, what it is: ``conv2.out_channels, written``.
        line: Where that was done, or is written; None if no line of the block did it.
        column: Where it is written, in UTF-8 bytes from 0; None where it is not.
        end_column: Where that ends.
        parts: Which steps it comes from, as numbers among those of the chain.
        formula: It in Python, ``{}`` for each part; "" where it is not known.
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
        """Whether it is a number that the block's code says."""
        return self.column is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class Lineage:
    """Where a size comes from; ``print`` shows it.

    Attributes:
        name: What it is the size of, such as ``dimension 1 of x``.
        steps: The size, and all that it comes from.
        caveat: What is not known of it, in words; "" for nothing.
    """

    name: str
    steps: tuple[Step, ...]
    caveat: str = ""

    @property
    def size(self) -> int:
        """The size itself."""
        return int(self.steps[0].value)

    @property
    def roots(self) -> tuple[Step, ...]:
        """The numbers that it comes from and that are written, each with its line."""
        return tuple(step for step in self.steps if step.is_written)

    def predict(self, values: Mapping[int, float]) -> float | None:
        """Return what the size would be if numbers that it comes from were others.

        Args:
            values: By the numbers of steps what these would be.

        Returns:
            None where the formula of a step on the way is not known.
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
        """The chain as text: what a number comes from stands below it, indented."""
        return tuple(self._walk_lines())

    def walk(self) -> Iterator[tuple[int, Step, bool]]:
        """Yield the steps, what a number comes from below it.

        Yields:
            Depth, step, and whether what it comes from was told, and is not again.
        """
        alike = find_alike(self.steps)
        told: set[int] = set()
        todo = [(0, 0)]
        while todo:
            number, depth = todo.pop()
            step = self.steps[number]
            is_told = alike[number] in told and bool(step.parts)
            yield depth, step, is_told
            if not is_told:
                parts = {alike[part]: part for part in reversed(step.parts)}
                todo += [(part, depth + 1) for part in parts.values()]
            told.add(alike[number])

    def _walk_lines(self) -> Iterator[str]:
        """Yield the lines of the chain, and of the caveat."""
        for depth, step, is_told in self.walk():
            where = f" (line {step.line})" if step.line else ""
            more = " ..." if is_told else ""
            yield f"{'  ' * depth}{step.value} = {step.text}{where}{more}"
        if self.caveat:
            yield self.caveat

    def __str__(self) -> str:
        return "\n".join((f"{self.name}:", *self.lines))


def find_alike(steps: Sequence[Step]) -> list[int]:
    """Return a number for each step: one for those that read the same, to the end."""
    numbers: dict[object, int] = {}

    @cache
    def find(at: int) -> int:
        step = steps[at]
        own = step.value, step.text, step.line
        return numbers.setdefault((own, *map(find, step.parts)), len(numbers))

    return [find(at) for at in range(len(steps))]
