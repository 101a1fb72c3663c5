"""Between which values those lie that an operator makes, if its signature says it."""

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from types import MappingProxyType
from typing import Final, NamedTuple

import torch

from meta_magic.recording.rows import computed_bounds as computed
from meta_magic.recording.rows.made_values import Bounds, Find, Made, Rule
from meta_magic.trace.signature import Signature

__all__ = ["Bounds", "Known", "find_known", "join"]


def passes_on(*names: str) -> Rule:
    """Return the rule of an operator that returns values of some operands."""

    def find(made: Made) -> Bounds | None:
        return join(made.find_each(names))

    return find


def is_filled(value: int) -> Rule:
    """Return the rule of an operator that makes one value alone."""
    return lambda _made: (value, value)


def find_truth(_: Made) -> Bounds:
    """Return the bounds of what is true or not."""
    return 0, 1


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
    return computed.count_from_0(made.shape[0])


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


INTEGERS: Final = {
    dtype: (torch.iinfo(dtype).min, torch.iinfo(dtype).max)
    for dtype in (
        *(torch.int64, torch.int32, torch.int16, torch.int8),
        *(torch.uint64, torch.uint32, torch.uint16, torch.uint8),
    )
}
"""The least and the greatest number of a dtype: others wrap."""

WITH_POSITIONS: Final = "sort topk max min median nanmedian kthvalue mode cummax cummin"
"""Operators that return values, and where along a dimension these stand."""

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
        passes_on("self"): "clone to_copy repeat flip roll index index_select gather "
        f"take masked_select unique2 {WITH_POSITIONS}",
        passes_on("weight"): "embedding",
        passes_on("tensors"): "cat stack",
        passes_on("self", "other"): "where",
        passes_on("self", "value"): "masked_fill index_fill",
        passes_on("self", "values"): "index_put",
        passes_on("self", "source"): "index_copy masked_scatter",
        computed.find_product: "mul",
        computed.find_negative: "neg",
        computed.find_absolute: "abs",
        computed.find_reversed_difference: "rsub",
        computed.find_quotient: "floor_divide div",
        computed.find_modulus: "remainder",
        computed.find_fmod: "fmod",
        computed.find_anded: "bitwise_and",
        computed.find_larger: "maximum",
        computed.find_smaller: "minimum",
        computed.find_clamped: "clamp clamp_min clamp_max",
        computed.find_position_of_all: "argmax argmin",
        computed.find_position: "multinomial",
        computed.find_bucket: "bucketize searchsorted",
        find_padded: "constant_pad_nd",
    }
)
SECOND_NAMES: Final[Mapping[Rule, str]] = MappingProxyType(
    {
        computed.find_position: WITH_POSITIONS,
        computed.find_inverse: "unique2",
        computed.positions_in_plane(2): "max_pool2d_with_indices adaptive_max_pool2d "
        "fractional_max_pool2d",
        computed.positions_in_plane(3): "max_pool3d_with_indices adaptive_max_pool3d "
        "fractional_max_pool3d",
    }
)


def by_name(names: Mapping[Rule, str]) -> dict[str, Rule]:
    """Return the rule of each operator."""
    return {name: rule for rule, part in names.items() for name in part.split()}


RULES: Final = (by_name(NAMES), by_name(SECOND_NAMES))
"""Of what operators return first, and second, by name without underscores around it.
Of others nothing is known."""


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


class Known(NamedTuple):
    """What is known of what the calls of a signature make, or write.

    Attributes:
        signature: The signature.
        rules: That of each tensor that they return; None if it has none.
    """

    signature: Signature
    rules: tuple[Rule | None, ...]

    def find(self, find_input: Find, at: int) -> Bounds | None:
        """Return the bounds of what one call made; None if integers might wrap.

        Args:
            find_input: Returns those of its inputs.
            at: Which of the tensors that it returns.
        """
        rule = self.rules[at]
        if rule is None:
            return None
        bounds = rule(Made(self.signature, find_input, at))
        dtype = self.signature.outputs[at].dtype
        if bounds is None or dtype not in INTEGERS:
            return bounds
        low, high = INTEGERS[dtype]
        return bounds if low <= bounds[0] and bounds[1] <= high else None


def find_known(signature: Signature) -> Known | None:
    """Return what is known of what calls of a signature make or write, if anything."""
    if signature.writes and len(signature.outputs) != 1:
        return None
    rules = tuple(
        find_truth if made.dtype is torch.bool else find_rule(signature, at)
        for at, made in enumerate(signature.outputs)
    )
    return Known(signature, rules) if any(rules) else None


def find_rule(signature: Signature, at: int) -> Rule | None:
    """Return the rule of what an operator returns, if it has one."""
    if ADDING in signature.arguments:
        return None
    return find_rule_of(signature.op, at, is_writing=bool(signature.writes))


@cache
def find_rule_of(op: str, at: int, *, is_writing: bool) -> Rule | None:
    """Return the rule of an operator by its name, and whether it writes."""
    library, name, *_ = op.split(".")
    if library != "aten":
        return None
    if is_writing:
        return WRITTEN.get(name)
    return RULES[at].get(name.strip("_")) if at < len(RULES) else None
