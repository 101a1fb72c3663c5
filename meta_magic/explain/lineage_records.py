"""Where a size comes from: a chain of steps back to the numbers that are written."""

from collections.abc import Iterator
from dataclasses import dataclass

__all__ = ["Lineage", "Step"]


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
        formula: It in Python, ``{}`` for each part; "" where none is known.
    """

    value: int
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
        return self.steps[0].value

    @property
    def roots(self) -> tuple[Step, ...]:
        """The numbers that it comes from and that are written, each with its line."""
        return tuple(step for step in self.steps if step.is_written)

    @property
    def lines(self) -> tuple[str, ...]:
        """The chain as text: what a number comes from stands below it, indented."""
        return tuple(self._walk_lines())

    def _walk_lines(self) -> Iterator[str]:
        """Yield the lines of the chain; what stood there before is not told again."""
        told: set[int] = set()
        todo = [(0, 0)]
        while todo:
            number, depth = todo.pop()
            step = self.steps[number]
            where = f" (line {step.line})" if step.line else ""
            more = " ..." if number in told and step.parts else ""
            yield f"{'  ' * depth}{step.value} = {step.text}{where}{more}"
            if number not in told:
                todo += [(part, depth + 1) for part in reversed(step.parts)]
            told.add(number)
        if self.caveat:
            yield self.caveat

    def __str__(self) -> str:
        return "\n".join((f"{self.name}:", *self.lines))
