"""What one call computes and moves, by its signature alone.

``count_operations`` looks up the formula of an operator: a user's, ours, one that is
registered with torch, or a weight for each element. ``count_traffic`` counts the bytes
that a call reads and writes, each element once, which is the least: a view moves
nothing, an expanded dimension is read once, of a table only the rows that are looked
up. Workspaces, and repeated reads by a kernel whose caches are small, are not known.
"""

import sys
from collections.abc import Callable, Mapping
from functools import lru_cache
from math import prod
from typing import Any, Final, Literal, NamedTuple, TypeAlias, TypeVar

import torch

from meta_magic.torch_private.dispatcher import OpOverload, schema_of
from meta_magic.trace.formulas.algorithm_flops import (
    FACTORIZATION_FLOPS,
    TRANSFORM_FLOPS,
)
from meta_magic.trace.formulas.elementwise_flops import INITIALIZERS, count_elementwise
from meta_magic.trace.formulas.product_flops import (
    ATTENTION_FLOPS,
    CONVOLUTION_FLOPS,
    MATRIX_FLOPS,
    NEEDED_ATTENTION_FLOPS,
    RECURRENT_FLOPS,
)
from meta_magic.trace.signature import (
    EMPTY,
    VIEWS_IN_PLACE,
    Formula,
    Geometry,
    Operands,
    Signature,
    TensorArgument,
    name_all,
    name_of,
    shape_of,
)

Function = TypeVar("Function", bound=Callable[..., int])
Packet: Final = type(torch.ops.aten.mm)

OWN: dict[str, Callable[..., int]] = {}
"""Formulas given by ``flop_formula``, by operator."""


def flop_formula(op: object) -> Callable[[Function], Function]:
    """Register a formula for the FLOPs of an operator, 2 for each multiply-add.

    It goes before any other formula and holds for all overloads, in ``trace.cost`` from
    then on, and in ``trace.ops`` of traces whose ``ops`` were not read before::

        @mm.flop_formula(torch.ops.mylib.attend)
        def attend_flops(query_shape, key_shape, *, out_shape, **_):
            return 4 * math.prod(query_shape) * key_shape[-2]

    Args:
        op: The operator (``torch.ops.mylib.attend``, with or without an overload) or
            its name, such as ``"mylib.attend"``.

    Returns:
        A decorator. The function is called like the operator, with shapes (tuples of
        sizes) in place of tensors, and ``out_shape=``, the shape of the result.

    Raises:
        TypeError: ``op`` is neither.

    Example:
        >>> import math
        >>> @flop_formula("my::scale")  # an operator of one's own
        ... def count_scale(shape, **_):
        ...     return math.prod(shape)
    """
    name = name_operator(op)

    def register(formula: Function) -> Function:
        OWN[name] = formula
        return formula

    return register


def name_operator(op: object) -> str:
    """Return an operator's name without its overload."""
    text = str(op).replace("::", ".")
    if not isinstance(op, str | OpOverload | Packet) or "." not in text:
        raise TypeError(
            "flop_formula takes an operator such as torch.ops.mylib.attend, or its "
            f"name 'mylib.attend', not {op!r}"
        )
    return ".".join(text.split(".")[:2])


def count_own(name: str, signature: Signature) -> int | None:
    """Return the FLOPs of a call by a user's formula; None if there is none."""
    formula = OWN.get(name)
    if formula is None:
        return None
    positional, keywords, made = read_arguments(signature)
    return int(formula(*positional, **keywords, out_shape=made))


def count_by_torch(name: str, signature: Signature) -> int | None:
    """Return the FLOPs of a call by a formula that is registered with torch.

    torch's own formulas are for operators that have one of ours, so only a library's
    are used. A library has imported ``flop_counter`` to register them.

    Returns:
        FLOPs; None where there is no formula, or one that needs tensors.

    Source:
        ``torch.utils.flop_counter.register_flop_formula``.
    """
    registered = sys.modules.get("torch.utils.flop_counter")
    namespace, _, operator = name.partition(".")
    packet = getattr(getattr(torch.ops, namespace, None), operator, None)
    formula = getattr(registered, "flop_registry", {}).get(packet)
    if formula is None:
        return None
    positional, keywords, made = read_arguments(signature)
    try:
        return int(formula(*positional, **keywords, out_val=made))
    except (AttributeError, AssertionError, LookupError, TypeError):
        return None


def read_arguments(signature: Signature) -> tuple[list[Any], dict[str, Any], Any]:
    """Return positional and keyword arguments and the result, tensors as shapes."""
    given = [(n, shape_of(v, signature.inputs)) for n, v in signature.arguments]
    keywords = keyword_names(signature.op)
    made = shape_of(signature.returns, signature.outputs)
    return (
        [value for name, value in given if name not in keywords],
        {name: value for name, value in given if name in keywords},
        made,
    )


@lru_cache(maxsize=2**10)
def keyword_names(op: str) -> frozenset[str]:
    """Return the names of the keyword-only arguments of an operator."""
    namespace, name, overload = op.split(".")
    packet = getattr(getattr(torch.ops, namespace), name)
    schema = schema_of(getattr(packet, overload))
    return frozenset(a.name for a in schema.arguments if a.kwarg_only)


WorkKind: TypeAlias = Literal["product", "elementwise", "moves", "unknown"]
"""What a call does: products and the like, which have FLOPs; operations element by
element; no arithmetic, as views and copies; or unknown."""

FLOPS: Final[Mapping[str, Formula]] = {
    **MATRIX_FLOPS,
    **CONVOLUTION_FLOPS,
    **ATTENTION_FLOPS,
    **RECURRENT_FLOPS,
    **FACTORIZATION_FLOPS,
    **TRANSFORM_FLOPS,
}

IN_COMPLEX: Final = 4
"""Real multiply-adds in a complex multiply-add: 4 products and 4 sums."""


class Operations(NamedTuple):
    """What one call computes.

    Attributes:
        flops: 2 for each multiply-add of its products; 0 for other kinds.
        flops_needed: FLOPs without those of masked pairs of attention.
        n_elementwise: Operations and functions element by element, by their weights.
    """

    kind: WorkKind
    flops: int = 0
    flops_needed: int = 0
    n_elementwise: int = 0


MOVES: Final = Operations("moves")
UNKNOWN: Final = Operations("unknown")


def count_operations(signature: Signature) -> Operations:
    """Return what one call computes; nothing if it returned and wrote nothing."""
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
    """Return the result of a formula; unknown where an argument is missing."""
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
        FLOPs of all products, masked ones too; None for operators without a formula,
        and for those that compute element by element.
    """
    counted = count_operations(signature)
    return counted.flops if counted.kind == "product" else None


class Traffic(NamedTuple):
    """Bytes that one call reads, and bytes that it makes or writes."""

    nbytes_read: int
    nbytes_written: int


NOTHING: Final = Traffic(0, 0)
OTHERS: Final = "_unsafe_view _reshape_alias resize_ set_ resize_as_ record_stream"
UNTOUCHED: Final = frozenset(
    name_all(" ".join((*EMPTY, *VIEWS_IN_PLACE, OTHERS, "lift_fresh")))
)
"""Operators that make or change a tensor and touch no element."""

OVERWRITES: Final = {INITIALIZERS} | frozenset(
    name_all("""
    zero_ fill_ copy_ normal_ uniform_ bernoulli_ random_ exponential_
    geometric_ cauchy_ log_normal_ trunc_normal_ _foreach_zero_ _foreach_copy_
    """)
)
"""Operators that write without reading the old values."""

LOOKS_UP: Final = frozenset(
    name_all("""
    embedding index index_select gather take _unsafe_index nll_loss_forward
    nll_loss2d_forward
    """)
)
"""Operators that read only some elements of their first tensor: as many as they
return, or as the other tensors have."""

SETS_PART: Final = frozenset(
    name_all("""
    index_put_ _index_put_impl_ _unsafe_index_put_ index_copy_ index_fill_
    scatter_ scatter_add_ scatter_reduce_ index_add_
    """)
)
"""Operators that write only some elements of their first tensor: as many as given."""

ADDS: Final = frozenset(name_all("scatter_add_ scatter_reduce_ index_add_"))
"""Of those, the ones that read what they write."""


def count_traffic(signature: Signature) -> Traffic:
    """Return the bytes that one call reads and writes."""
    name = name_of(signature)
    if signature.is_view or name in UNTOUCHED:
        return NOTHING
    if name in SETS_PART and signature.inputs:
        return count_part(signature, is_added=name in ADDS)
    pairs = zip(signature.outputs, signature.views, strict=True)
    made = sum(measure(g) for g, base in pairs if base is None)
    read = [measure(g) for g in signature.inputs]
    written = sum(read[i] for i in find_written(name, signature))
    if name in LOOKS_UP and read:
        indices = max([prod(g.shape) for g in signature.inputs[1:]], default=0)
        itemsize = signature.inputs[0].dtype.itemsize
        read[0] = min(read[0], max(made, indices * itemsize))
    if name in OVERWRITES or signature.op.endswith(("out", "grad_input")):
        for i in signature.writes:
            read[i] = 0
    return Traffic(sum(read), made + written)


def find_written(name: str, signature: Signature) -> list[int]:
    """Return the inputs that a call writes.

    A fused optimizer declares gradients as written; it only writes to scale them.
    """
    arguments = dict(signature.arguments)
    gradients = arguments.get("grads", ())
    is_unscaled = arguments.get("grad_scale") is None
    if not (name.startswith("aten._fused_") and is_unscaled):
        return [*signature.writes]
    listed = gradients if isinstance(gradients, tuple) else (gradients,)
    unwritten = {g.index for g in listed if isinstance(g, TensorArgument)}
    return [i for i in signature.writes if i not in unwritten]


def count_part(signature: Signature, *, is_added: bool) -> Traffic:
    """Return the bytes of a call that writes only some elements of its first tensor."""
    target, *others = signature.inputs
    n_elements = max([prod(g.shape) for g in others], default=0)
    part = min(measure(target), n_elements * target.dtype.itemsize)
    read = sum(measure(g) for g in others)
    return Traffic(read + part if is_added else read, part)


def measure(geometry: Geometry) -> int:
    """Return the bytes of distinct elements; 0 for a layout without strides."""
    if geometry.stride is None:
        return 0
    pairs = zip(geometry.shape, geometry.stride, strict=True)
    return prod(n for n, step in pairs if step or not n) * geometry.dtype.itemsize
