"""Draw random numbers of no use in little memory."""

from math import prod
from typing import Final

from meta_magic.replaying.program_calls import Call
from meta_magic.replaying.usage import is_dense
from meta_magic.trace.signature import Geometry

__all__ = ["is_in_order", "split_draw"]

MAX_DRAWN: Final = 2**20
GROUP: Final = 16


def split_draw(call: Call) -> list[int]:
    """Return how many elements to draw at a time, for numbers of no use on the CPU.

    They are used up in the same order as by the whole call, in little memory. Empty if
    only the whole call does that.
    """
    geometry = call.drawn
    if not (call.operator.can_split and is_in_order(geometry)):
        return []
    whole, rest = divmod(prod(geometry.shape), MAX_DRAWN)
    pieces = [MAX_DRAWN] * whole
    if 0 < rest < GROUP and pieces:
        pieces[-1] += rest  # normal_ draws otherwise for less than a group
    elif rest:
        pieces.append(rest)
    return pieces


def is_in_order(geometry: Geometry) -> bool:
    """Whether elements lie in memory one after the other, without gaps."""
    strides = list(geometry.stride or ())
    return is_dense(geometry) and strides == sorted(strides, reverse=True)
