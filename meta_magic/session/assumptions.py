"""Sizes and values that are assumed, because they cannot be computed."""

import math
from collections.abc import Sequence
from math import prod
from typing import Final, NamedTuple

import torch

from meta_magic.errors import ValueLimitError
from meta_magic.replaying.devices import free_nbytes
from meta_magic.session.routing import Routed
from meta_magic.trace.options import Assumed

__all__ = ["Guess", "advise", "advise_more", "guess_count", "guess_values"]

UNIFORM: Final = "routing=uniform"
CPU: Final = torch.device("cpu")

LARGE: Final = 10_000
"""Numbers from here on are written with an exponent."""

LONGEST: Final = 600
"""Seconds that a reader may choose to wait for a value."""

CONTROL: Final = frozenset(
    f"torch.Tensor.{name}" for name in ("__bool__", "__int__", "__index__")
)
"""What asks for a value that decides what the cell does next."""


class Guess(NamedTuple):
    """What is taken to be so.

    Attributes:
        n_true: How many elements of a mask are true, or what numbers add up to.
        text: By which assumption.
        value: What each number is; None if ``n_true`` says it.
    """

    n_true: int
    text: str
    value: float | None = None


def guess_count(
    routed: Routed | None, shape: Sequence[int], assumed: Assumed
) -> Guess | None:
    """Return how many elements of a mask are assumed to be true, or None.

    Args:
        routed: What is known of the mask if it sends tokens to experts.
        shape: Shape of the mask.
        assumed: What the user said.
    """
    numel = prod(shape)
    if routed is not None and assumed.is_uniform:
        return Guess(round(routed.part * numel), UNIFORM)
    if assumed.nonzero is None:
        return None
    part = assumed.nonzero
    return Guess(
        round(part * numel), f"nonzero={'all' if part == 1 else format(part, 'g')}"
    )


def guess_values(
    routed: Routed | None, tensor: torch.Tensor, assumed: Assumed
) -> Guess | None:
    """Return what numbers are assumed to be, or None.

    Args:
        routed: What is known of them if they count the tokens of experts.
        tensor: Whose numbers they are.
        assumed: What the user said.
    """
    if routed is not None and routed.mean is not None and assumed.is_uniform:
        return Guess(round(routed.mean * tensor.numel()), UNIFORM)
    if assumed.value is None:
        return None
    return Guess(0, f"values={assumed.value:g}", assumed.value)


def advise_more(error: ValueLimitError) -> list[str]:
    """Return how to allow what a value takes; [] where the machine could not do it."""
    wanted = error.wanted
    is_too_large = wanted.get("nbytes", 0) > free_nbytes(CPU)
    if not wanted or is_too_large or wanted.get("seconds", 0) > LONGEST:
        return []
    amounts = {
        limit: str(n) if n < LARGE else f"{n:.2g}".replace("+0", "").replace("+", "")
        for limit, n in wanted.items()
    }
    options = " ".join(f"--value-{limit} {n}" for limit, n in amounts.items())
    settings = ", ".join(f"{limit}={n}" for limit, n in amounts.items())
    return [f"{options} or record(limits=ValueLimits({settings}))"]


def advise(
    routed: Routed | None, tensor: torch.Tensor, function: str, *, is_mask: bool
) -> str:
    """Return which assumption helps where values are beyond the limits.

    Args:
        routed: What is known of the values if they send tokens to experts.
        tensor: Whose values they are.
        function: What asks for them.
        is_mask: Whether only their number decides.
    """
    if routed is not None and (is_mask or routed.mean is not None):
        option = UNIFORM
    elif is_mask:
        option = "nonzero=all"
    elif function in CONTROL or not tensor.is_floating_point():
        option = "values=0"
    else:
        option = f"values={math.nan}"
    return f"--assume {option} or record(assume={option!r})"
