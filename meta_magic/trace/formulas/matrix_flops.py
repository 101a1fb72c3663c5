"""Products of matrices and vectors: 2 for each multiply-add.

A bias, and a result that is added to, are not counted, as in ``FlopCounterMode``.
"""

from collections.abc import Mapping
from math import prod
from types import MappingProxyType
from typing import Final

from meta_magic.trace.formulas.operands import Formula, Operands, of_all

__all__ = ["MATRIX_FLOPS"]


def product_of(left: str) -> Formula:
    """Return the formula of a product whose left side is the argument of that name.

    Each element of the left side meets a row of the right side, as long as the result.
    """
    return lambda call: 2 * prod(call.shape(left)) * call.made[-1]


def once_for_each(name: str) -> Formula:
    """Return the formula of a product that uses each element of a tensor once."""
    return lambda call: 2 * prod(call.shape(name))


def count_grouped(call: Operands) -> int:
    """Count a product for each group; a side without groups is cut into them.

    Shape:
        (rows, k) by (groups, k, n): each row meets the matrix of its group.
        (m, rows) by (rows, n), the gradient of weights: each element a row of n.
        (groups, m, k) by (k, columns): each column meets the matrix of its group.
        (groups, m, k) by (groups, k, n): a product each.
    """
    left, right = call.shape("self"), call.shape("mat2")
    is_cut_right = len(left) > len(right)
    return 2 * prod(left[1:] if is_cut_right else left) * right[-1]


def count_trilinear(call: Operands) -> int:
    """Count the two products that sum over three tensors, as those of ``Bilinear``.

    The first two are multiplied, and summed over what the third lacks; then the third.

    Source:
        ``_trilinear`` in ``aten/src/ATen/native/Linear.cpp``.
    """
    sides: list[list[int]] = [list(call.shape(f"i{n}")) for n in (1, 2, 3)]
    lacking: list[list[int]] = [call.value(f"expand{n}") for n in (1, 2, 3)]
    for side, dims in zip(sides, lacking, strict=True):
        for dim in sorted(dims):
            side.insert(dim, 1)
    first: list[int] = [max(pair) for pair in zip(*sides[:2], strict=True)]
    early: list[int] = [d for d in call.value("sumdim") if d in lacking[2]]
    left = [1 if d in early else n for d, n in enumerate(first)]
    second: list[int] = [max(pair) for pair in zip(left, sides[2], strict=True)]
    return 2 * (prod(first) + prod(second))


MATRIX_FLOPS: Final[Mapping[str, Formula]] = MappingProxyType(
    of_all("mm bmm _int_mm _scaled_mm _scaled_mm_v2 mkldnn_linear", product_of("self"))
    | of_all("_weight_int8pack_mm _weight_int4pack_mm", product_of("self"))
    | {"aten._weight_int4pack_mm_for_cpu": product_of("self")}
    | of_all("addmm _addmm_activation", product_of("mat1"))
    | of_all("baddbmm addbmm", product_of("batch1"))
    | of_all("linear _mixed_dtypes_linear", product_of("input"))
    | of_all("mv dot vdot addr", once_for_each("self"))
    | of_all("addmv", once_for_each("mat"))
    | of_all("_grouped_mm _scaled_grouped_mm _scaled_grouped_mm_v2", count_grouped)
    | {"aten._trilinear": count_trilinear}
)
