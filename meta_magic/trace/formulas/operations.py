"""What a call computes: FLOPs by its formula, and what is known where it has none."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, Literal, NamedTuple, TypeAlias

from meta_magic.trace.formulas.attention_flops import (
    ATTENTION_FLOPS,
    NEEDED_ATTENTION_FLOPS,
)
from meta_magic.trace.formulas.convolution_flops import CONVOLUTION_FLOPS
from meta_magic.trace.formulas.elementwise_flops import count_elementwise
from meta_magic.trace.formulas.factorization_flops import FACTORIZATION_FLOPS
from meta_magic.trace.formulas.matrix_flops import MATRIX_FLOPS
from meta_magic.trace.formulas.operands import Formula, Operands, name_of
from meta_magic.trace.formulas.recurrent_flops import RECURRENT_FLOPS
from meta_magic.trace.formulas.torch_formulas import count_by_torch, count_own
from meta_magic.trace.formulas.transform_flops import TRANSFORM_FLOPS
from meta_magic.trace.signature import Signature

__all__ = ["Kind", "Operations", "count_flops", "count_operations"]

Kind: TypeAlias = Literal["product", "elementwise", "moves", "unknown"]
"""What a call does: products and the like, which have FLOPs; something element by
element; no arithmetic, as views and copies; or nobody told us."""

FLOPS: Final[Mapping[str, Formula]] = MappingProxyType(
    {
        **MATRIX_FLOPS,
        **CONVOLUTION_FLOPS,
        **ATTENTION_FLOPS,
        **RECURRENT_FLOPS,
        **FACTORIZATION_FLOPS,
        **TRANSFORM_FLOPS,
    }
)

IN_COMPLEX: Final = 4
"""Real multiply-adds in a complex one: 4 products and 4 sums."""


class Operations(NamedTuple):
    """What one call computes.

    Attributes:
        kind: What it does.
        flops: 2 for each multiply-add of its products; 0 for other kinds.
        flops_needed: Without the products that a causal mask or a window leaves out.
        n_elementwise: Operations and functions element by element, by their weights.
    """

    kind: Kind
    flops: int = 0
    flops_needed: int = 0
    n_elementwise: int = 0


MOVES: Final = Operations("moves")
UNKNOWN: Final = Operations("unknown")


def count_operations(signature: Signature) -> Operations:
    """Return what one call computes; it depends on nothing but its signature.

    A call that returned and wrote nothing, as one that raised, computes nothing.
    """
    if not signature.outputs and not signature.writes:
        return MOVES
    name = name_of(signature)
    own = count_own(name, signature)
    if own is not None:
        return Operations("product", own, own)
    formula = find_formula(name)
    if formula is not None:
        return count_products(name, formula, signature)
    registered = count_by_torch(name, signature)
    if registered is not None:
        return Operations("product", registered, registered)
    n = count_elementwise(name, Operands(signature))
    if n is None:
        return MOVES if signature.is_view else UNKNOWN
    return Operations("elementwise", n_elementwise=n) if n else MOVES


def find_formula(name: str) -> Formula | None:
    """Return the formula of an operator, also of one that writes in place."""
    return FLOPS.get(name) or FLOPS.get(name.removesuffix("_"))


def count_products(name: str, formula: Formula, signature: Signature) -> Operations:
    """Return what a formula gives; unknown where it lacks what it needs."""
    call = Operands(signature)
    needed = NEEDED_ATTENTION_FLOPS.get(name, formula)
    try:
        flops = formula(call)
        flops_needed = flops if needed is formula else needed(call)
    except (LookupError, TypeError, ValueError):
        return UNKNOWN
    if any(g.dtype.is_complex for g in signature.inputs[:1]) and "fft" not in name:
        flops, flops_needed = IN_COMPLEX * flops, IN_COMPLEX * flops_needed
    return Operations("product", flops, flops_needed)


def count_flops(signature: Signature) -> int | None:
    """Return the FLOPs of one call, 2 for each multiply-add.

    Returns:
        All of its products, masked ones too; None for what has no formula, and for what
        computes element by element, which is counted apart.
    """
    counted = count_operations(signature)
    return counted.flops if counted.kind == "product" else None
