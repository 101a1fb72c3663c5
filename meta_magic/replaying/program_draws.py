"""The draws of a program: where random operators would have begun to draw."""

from collections.abc import Iterator
from typing import NamedTuple

from meta_magic.trace.program import DRAW, Randomness

__all__ = ["Draw", "read_draws"]


class Draw(NamedTuple):
    """One use of a generator, as ``Randomness.draws`` has it."""

    number: int
    call: int
    generator: int
    source: int

    @property
    def after(self) -> int | None:
        """The draw whose end state it began from; None if it was a state of its own."""
        return self.source // 2 - 1 if self.source and not self.source & 1 else None


def read_draws(randomness: Randomness, first: int) -> Iterator[Draw]:
    """Yield the draws of a program from one on."""
    words = memoryview(randomness.draws).cast("I")
    for number in range(first, len(words) // DRAW):
        yield Draw(number, *words[DRAW * number : DRAW * number + DRAW])
