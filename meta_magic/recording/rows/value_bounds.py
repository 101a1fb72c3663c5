"""Between which values those lie that an operator makes, if its signature says it."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from types import MappingProxyType
from typing import Any, Final, TypeAlias

import torch

from meta_magic.trace.signature import Signature, TensorArgument

__all__ = ["Bounds", "find_made", "has_bounds", "join"]

Bounds: TypeAlias = tuple[float, float]
"""The least and the greatest value that there may be."""

Find = Callable[[int], Bounds | None]
"""Returns between which values an input lies, if that is known."""

Rule = Callable[["Made"], Bounds | None]

TRUTH: Final = (0, 1)


class Made:
    """What one call made: its arguments, and the bounds of what it read."""

    def __init__(self, signature: Signature, find_input: Find) -> None:
        self.shape = signature.outputs[0].shape
        self._given = dict(signature.arguments)
        self._find_input = find_input

    def number(self, name: str, default: Any = None) -> Any:
        """Return a number that it was given; a default if it was not, or no number."""
        value = self._given.get(name, default)
        return value if type(value) in (int, float, bool) else default

    def find(self, name: str) -> Bounds | None:
        """Return the bounds of an operand, a tensor or a number."""
        value = self._given.get(name)
        if isinstance(value, TensorArgument):
            return self._find_input(value.index)
        number = self.number(name)
        return None if number is None else (number, number)

    def find_each(self, names: Sequence[str]) -> Iterator[Bounds | None]:
        """Yield the bounds of operands, and of all tensors in a list."""
        for name in names:
            value = self._given.get(name)
            if isinstance(value, tuple):
                yield from (self._find_input(part.index) for part in value)
            else:
                yield self.find(name)


def passes_on(*names: str) -> Rule:
    """Return the rule of an operator that returns values of some operands."""

    def find(made: Made) -> Bounds | None:
        return join(made.find_each(names))

    return find


def is_filled(value: int) -> Rule:
    """Return the rule of an operator that makes one value alone."""
    return lambda _made: (value, value)


def find_of_arange(made: Made) -> Bounds:
    """Return the first number and the last."""
    start, step = made.number("start", 0), made.number("step", 1)
    last = start + (max(made.shape[0], 1) - 1) * step
    return min(start, last), max(start, last)


def find_drawn(made: Made) -> Bounds | None:
    """Return between which numbers others are drawn."""
    high = made.number("high")
    return None if high is None else (made.number("low", 0), high - 1)


def find_permuted(made: Made) -> Bounds:
    """Return the first position and the last."""
    return 0, max(made.shape[0], 1) - 1


def find_sum(made: Made) -> Bounds | None:
    """Return the bounds of a sum."""
    return combine(made, made.number("alpha", 1))


def find_difference(made: Made) -> Bounds | None:
    """Return the bounds of a difference."""
    return combine(made, -made.number("alpha", 1))


def combine(made: Made, factor: float) -> Bounds | None:
    """Return the bounds of one operand and a multiple of another."""
    left, right = made.find("self"), made.find("other")
    if left is None or right is None:
        return None
    ends = factor * right[0], factor * right[1]
    return left[0] + min(ends), left[1] + max(ends)


def find_padded(made: Made) -> Bounds | None:
    """Return the bounds of what is there and of what is put around it."""
    value = made.number("value", 0)
    return join([made.find("self"), (value, value)])


def join(parts: "Sequence[Bounds | None] | Iterator[Bounds | None]") -> Bounds | None:
    """Return the bounds of all of some; None if those of one are not known."""
    known = [*parts]
    met = [part for part in known if part is not None]
    if not met or len(met) < len(known):
        return None
    return min(low for low, _ in met), max(high for _, high in met)


NAMES: Final[Mapping[Rule, str]] = MappingProxyType(
    {
        is_filled(0): "zeros zeros_like new_zeros",
        is_filled(1): "ones ones_like new_ones",
        passes_on("fill_value"): "full full_like new_full",
        passes_on("s"): "scalar_tensor",
        find_of_arange: "arange",
        find_drawn: "randint randint_like",
        find_permuted: "randperm",
        find_sum: "add",
        find_difference: "sub",
        passes_on("self"): "clone _to_copy repeat flip roll index index_select gather "
        "take",
        passes_on("tensors"): "cat stack",
        passes_on("self", "other"): "where",
        find_padded: "constant_pad_nd",
    }
)
RULES: Final = {name: rule for rule, names in NAMES.items() for name in names.split()}
"""By name. Of others nothing is known."""


WRITTEN: Final[Mapping[str, Rule]] = MappingProxyType(
    {
        "copy_": passes_on("src"),
        "fill_": passes_on("value"),
        "zero_": is_filled(0),
        "masked_fill_": passes_on("value"),
        "index_fill_": passes_on("value"),
        "index_put_": passes_on("values"),
        "index_copy_": passes_on("source"),
    }
)
"""Of what operators write, anywhere in a tensor."""

ADDING: Final = ("accumulate", True)


def has_bounds(signature: Signature) -> bool:
    """Whether something may be known of what calls of a signature make or write."""
    if len(signature.outputs) != 1:
        return False
    is_true = signature.outputs[0].dtype is torch.bool
    return is_true or find_rule(signature) is not None


def find_rule(signature: Signature) -> Rule | None:
    """Return the rule of an operator, if it has one."""
    if ADDING in signature.arguments:
        return None
    return find_rule_of(signature.op, is_writing=bool(signature.writes))


@cache
def find_rule_of(op: str, *, is_writing: bool) -> Rule | None:
    """Return the rule of an operator by its name, and whether it writes."""
    library, name, *_ = op.split(".")
    rules = WRITTEN if is_writing else RULES
    return rules.get(name) if library == "aten" else None


def find_made(signature: Signature, find_input: Find) -> Bounds | None:
    """Return the bounds of what calls of a signature make, or write.

    None if they are not known.

    Args:
        signature: The signature, of an operator that returns one tensor.
        find_input: Returns those of its inputs.
    """
    if signature.outputs[0].dtype is torch.bool:
        return TRUTH
    rule = find_rule(signature)
    return None if rule is None else rule(Made(signature, find_input))
