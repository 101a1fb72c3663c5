"""What is known of one call of an operator, and of the numbers that it read."""

from collections.abc import Callable, Iterator, Sequence
from math import inf
from typing import Any, Final, TypeAlias

from meta_magic.trace.signature import Signature, TensorArgument

__all__ = ["ANY", "Bounds", "Find", "Made", "Rule"]

Bounds: TypeAlias = tuple[float, float]
"""The least and the greatest value that there may be."""

NUMBERS: Final = frozenset({int, float, bool})
ANY: Final[Bounds] = (-inf, inf)

Find = Callable[[int], Bounds | None]
"""Returns between which values an input lies, if that is known."""

Rule = Callable[["Made"], Bounds | None]


class Made:
    """What one call made: its arguments, and the bounds of what it read.

    Args:
        signature: The signature of the call.
        find_input: Returns the bounds of its inputs.
        at: Which of its outputs is asked about.
    """

    def __init__(self, signature: Signature, find_input: Find, at: int = 0) -> None:
        self.shape = signature.outputs[at].shape
        self.first_shape = signature.outputs[0].shape
        self._inputs = signature.inputs
        self._given = dict(signature.arguments)
        self._find_input = find_input

    def has(self, name: str) -> bool:
        """Whether it was given an argument."""
        return self._given.get(name) is not None

    def number(self, name: str, default: Any = None) -> Any:
        """Return a number that it was given; a default if it was not, or no number."""
        value = self._given.get(name, default)
        return value if type(value) in NUMBERS else default

    def text(self, name: str) -> str:
        """Return a word that it was given; "" if it was not."""
        value = self._given.get(name)
        return value if isinstance(value, str) else ""

    def sizes(self, name: str) -> tuple[int, ...]:
        """Return the shape of a tensor that it was given."""
        value = self._given[name]
        return self._inputs[value.index].shape  # type: ignore[attr-defined]  # a tensor's

    def find(self, name: str) -> Bounds | None:
        """Return the bounds of an operand, a tensor or a number."""
        value: Any = self._given.get(name)
        if isinstance(value, TensorArgument):
            return self._find_input(value.index)
        return (value, value) if type(value) in NUMBERS else None

    def find_each(self, names: Sequence[str]) -> Iterator[Bounds | None]:
        """Yield the bounds of operands, and of all tensors in a list."""
        for name in names:
            value = self._given.get(name)
            if isinstance(value, tuple):
                yield from (self._find_input(part.index) for part in value)
            else:
                yield self.find(name)
