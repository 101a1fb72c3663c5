"""Between which values positions lie, and integers that operators compute of others.

Integers that do not fit into their dtype wrap: whoever asks looks whether these do.
"""

from itertools import product
from math import inf, prod
from typing import Final

from meta_magic.recording.rows.made_values import ANY, Bounds, Made, Rule

__all__ = [
    "count_from_0",
    "find_absolute",
    "find_anded",
    "find_bucket",
    "find_clamped",
    "find_fmod",
    "find_inverse",
    "find_larger",
    "find_modulus",
    "find_negative",
    "find_position",
    "find_position_of_all",
    "find_product",
    "find_quotient",
    "find_reversed_difference",
    "find_smaller",
    "positions_in_plane",
]

ROUNDING: Final = frozenset({"floor", "trunc"})


def count_from_0(n: int) -> Bounds:
    """Return the first position and the last of so many."""
    return 0, max(n, 1) - 1


def find_position(made: Made) -> Bounds:
    """Return the first position and the last along a dimension, the last by default."""
    sizes = made.sizes("self")
    return count_from_0(sizes[made.number("dim", -1)] if sizes else 1)


def find_position_of_all(made: Made) -> Bounds:
    """Return those along a dimension, or among all elements if none is given."""
    return find_position(made) if made.has("dim") else count_from_0(count(made, "self"))


def count(made: Made, name: str) -> int:
    """Return how many elements an operand has."""
    return prod(made.sizes(name))


def positions_in_plane(ndim: int) -> Rule:
    """Return the rule of positions in the last dimensions, counted together."""
    return lambda made: count_from_0(prod(made.sizes("self")[-ndim:]))


def find_bucket(made: Made) -> Bounds:
    """Return before which of some boundaries values may belong."""
    name = "boundaries" if made.has("boundaries") else "sorted_sequence"
    return 0, made.sizes(name)[-1]


def find_inverse(made: Made) -> Bounds:
    """Return positions among the values that differ, which come first."""
    return count_from_0(made.first_shape[0])


def find_product(made: Made) -> Bounds | None:
    """Return the bounds of a product."""
    left, right = made.find("self"), made.find("other")
    if left is None or right is None:
        return None
    ends = [a * b for a, b in product(left, right)]
    return min(ends), max(ends)


def find_negative(made: Made) -> Bounds | None:
    """Return the bounds of what has the other sign."""
    known = made.find("self")
    return None if known is None else (-known[1], -known[0])


def find_absolute(made: Made) -> Bounds | None:
    """Return the bounds of what has no sign."""
    known = made.find("self")
    if known is None:
        return None
    return max(0, known[0], -known[1]), max(-known[0], known[1])


def find_reversed_difference(made: Made) -> Bounds | None:
    """Return the bounds of one operand without a multiple of the first."""
    taken, other = made.find("self"), made.find("other")
    if taken is None or other is None:
        return None
    ends = [made.number("alpha", 1) * end for end in taken]
    return other[0] - max(ends), other[1] - min(ends)


def find_quotient(made: Made) -> Bounds | None:
    """Return the bounds of a quotient of integers by positive ones, rounded."""
    known, divisor = made.find("self"), made.find("other")
    rounding = made.text("rounding_mode") or "floor"
    if known is None or divisor is None or divisor[0] <= 0 or rounding not in ROUNDING:
        return None
    is_cut = rounding == "trunc"
    ends = [
        -(-a // b) if is_cut and a < 0 else a // b for a, b in product(known, divisor)
    ]
    return min(ends), max(ends)


def find_modulus(made: Made) -> Bounds | None:
    """Return the bounds of a remainder that has the sign of its divisor."""
    known, divisor = made.find("self") or ANY, made.find("other")
    if divisor is None or divisor[0] <= 0 <= divisor[1]:
        return None
    if divisor[1] < 0:
        return divisor[0] + 1, 0
    is_kept = known[0] >= 0 and known[1] < divisor[0]
    return known if is_kept else (0, divisor[1] - 1)


def find_fmod(made: Made) -> Bounds | None:
    """Return the bounds of a remainder that has the sign of what is divided."""
    known, divisor = made.find("self") or ANY, made.find("other")
    if divisor is None or divisor[0] <= 0 <= divisor[1]:
        return None
    most = max(map(abs, divisor)) - 1
    return min(0, max(known[0], -most)), max(0, min(known[1], most))


def find_anded(made: Made) -> Bounds | None:
    """Return the bounds of the bits that both have, if one has no sign."""
    known = (made.find("self") or ANY, made.find("other") or ANY)
    most = min((high for low, high in known if low >= 0), default=inf)
    return None if most == inf else (0, most)


def find_larger(made: Made) -> Bounds:
    """Return the bounds of the larger ones of two."""
    (a, b), (c, d) = made.find("self") or ANY, made.find("other") or ANY
    return max(a, c), max(b, d)


def find_smaller(made: Made) -> Bounds:
    """Return the bounds of the smaller ones of two."""
    (a, b), (c, d) = made.find("self") or ANY, made.find("other") or ANY
    return min(a, c), min(b, d)


def find_clamped(made: Made) -> Bounds:
    """Return the bounds of what is kept between others, the upper ones at last."""
    low, high = made.find("self") or ANY
    if made.has("min"):
        least = made.find("min") or ANY
        low, high = max(low, least[0]), max(high, least[1])
    if made.has("max"):
        most = made.find("max") or ANY
        low, high = min(low, most[0]), min(high, most[1])
    return low, high
