"""Fourier transforms and distances of all pairs: leading terms.

Source:
    A complex transform of n points: 5 n log₂ n real operations (Cooley and Tukey, radix
    2), half of that for real data; as benchmarks of FFTs count, whatever the algorithm.
    Distances: ``aten/src/ATen/native/Distance.cpp``.
"""

from collections.abc import Mapping
from math import log2, prod
from types import MappingProxyType
from typing import Final

from meta_magic.trace.formulas.operands import Formula, Operands

__all__ = ["TRANSFORM_FLOPS"]

MANY: Final = 25
"""Rows over which distances are computed by a product of matrices."""


def count_fourier(call: Operands, each: float) -> int:
    """Count transforms along some dimensions, as long as the real side is."""
    shape = call.shape("self") if "last_dim_size" not in call else call.made
    dims = call.value("dim")
    n_points = prod(shape[d] for d in dims)
    return round(each * prod(shape) * log2(max(n_points, 1)))


def count_distances(call: Operands) -> int:
    """Count subtraction, power and sum for each pair of rows and coordinate.

    Euclidean ones of many rows are a product of matrices two columns wider.
    """
    first, second = call.shape("x1"), call.shape("x2")
    n_pairs, width = prod(call.made), first[-1]
    by_product = call.value("compute_mode")
    has_many = max(first[-2], second[-2]) > MANY
    is_product = by_product == 1 or (not by_product and has_many)
    if call.value("p", 2.0) == 2.0 and is_product:  # noqa: PLR2004  Euclid's
        return 2 * n_pairs * (width + 2)
    return 3 * n_pairs * width


def count_distances_backward(call: Operands) -> int:
    """Count subtraction, quotient, product and sum for each pair and coordinate."""
    return 4 * prod(call.shape("cdist")) * call.shape("x1")[-1]


TRANSFORM_FLOPS: Final[Mapping[str, Formula]] = MappingProxyType(
    {
        "aten._fft_c2c": lambda call: count_fourier(call, 5.0),
        "aten._fft_r2c": lambda call: count_fourier(call, 2.5),
        "aten._fft_c2r": lambda call: count_fourier(call, 2.5),
        "aten._cdist_forward": count_distances,
        "aten._cdist_backward": count_distances_backward,
        "aten._euclidean_dist": count_distances,
        "aten._pdist_forward": lambda call: (
            3 * prod(call.made) * call.shape("self")[-1]
        ),
    }
)
