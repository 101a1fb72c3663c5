"""What computes element by element: so many functions for each, counted apart.

A weight is the number of arithmetic operations and elementary functions (exp, sqrt,
tanh, erf, a comparison: one each) for each element of the largest tensor. It is what
the usual formula takes, not what a kernel does.
"""

from collections.abc import Mapping
from math import log2, prod
from types import MappingProxyType
from typing import Final

from meta_magic.trace.formulas.operands import Formula, Operands, of_all
from meta_magic.trace.formulas.weights import WEIGHT_BY_OP

__all__ = ["count_elementwise"]


def count_elementwise(name: str, call: Operands) -> int | None:
    """Return the operations of a call that is no product; None if they are not known.

    Args:
        name: The operator's, without its overload.
        call: Its arguments.
    """
    base = name.replace("._foreach_", ".")
    if base not in WEIGHT_BY_OP:
        base = base.removesuffix("_")
    if base in SPECIAL:
        return SPECIAL[base](call)
    weight = WEIGHT_BY_OP.get(base)
    if not weight:
        return weight
    if isinstance(call.value("self"), tuple):  # of _foreach_ and fused optimizers
        return weight * sum(map(prod, call.shapes("self")))
    return weight * call.largest


def each_of(argument: str, weight: int = 1) -> Formula:
    """Return the formula of what computes for each element of one argument."""
    return lambda call: weight * prod(call.shape(argument))


def each_made(weight: int = 1) -> Formula:
    """Return the formula of what computes for each element of its result."""
    return lambda call: weight * prod(call.made)


def count_windows(call: Operands) -> int:
    """Count one operation for each element of each window of a pooling."""
    size = call.value("kernel_size")
    n_dims = 1 if "1d" in call.signature.op else 3 if "3d" in call.signature.op else 2
    sizes = size if isinstance(size, tuple) and len(size) > 1 else (size,) * n_dims
    n_each: int = prod(n[0] if isinstance(n, tuple) else n for n in sizes)
    return prod(call.made) * n_each


def count_comparisons(call: Operands) -> int:
    """Count n log₂ n comparisons for each row that is sorted."""
    shape = call.shape("self")
    n = shape[call.value("dim", -1)] if shape else 1
    return round(prod(shape) * log2(max(n, 1)))


def count_accumulated(call: Operands) -> int:
    """Count one addition for each value that is added; none where they replace."""
    return prod(call.shape("values")) if call.value("accumulate") else 0


def count_bags(call: Operands) -> int:
    """Count one addition for each element of each row that is looked up."""
    return prod(call.shape("indices")) * call.made[-1]


SPECIAL: Final[Mapping[str, Formula]] = MappingProxyType(
    of_all("avg_pool1d avg_pool2d avg_pool3d max_pool2d_with_indices", count_windows)
    | of_all(
        "max_pool3d_with_indices mkldnn_max_pool2d mkldnn_max_pool3d", count_windows
    )
    | of_all("sort msort argsort", count_comparisons)
    | of_all("index_put _index_put_impl _unsafe_index_put", count_accumulated)
    | of_all("_embedding_bag _embedding_bag_forward_only", count_bags)
    | of_all("embedding_dense_backward", each_of("grad_output"))
    | of_all("index_add", each_of("source"))
    | of_all("scatter_add scatter_reduce", each_of("src"))
    | of_all("nll_loss_forward nll_loss2d_forward", each_of("target"))
    | of_all("nll_loss_backward nll_loss2d_backward", each_of("target"))
    # Along each axis: weights, and the neighbours that they multiply.
    | of_all("upsample_linear1d", each_made(4))
    | of_all("upsample_bilinear2d grid_sampler_2d", each_made(11))
    | of_all("upsample_trilinear3d grid_sampler_3d", each_made(22))
    | of_all("upsample_bicubic2d", each_made(40))
    | of_all("_upsample_bilinear2d_aa _upsample_bicubic2d_aa", each_made(40))
    | of_all("upsample_linear1d_backward", each_of("grad_output", 4))
    | of_all("upsample_bilinear2d_backward", each_of("grad_output", 11))
    | of_all("upsample_trilinear3d_backward", each_of("grad_output", 22))
    | of_all("upsample_bicubic2d_backward", each_of("grad_output", 40))
    | of_all("grid_sampler_2d_backward", each_of("grad_output", 22))
)
"""Those whose work is not that of their largest tensor."""
