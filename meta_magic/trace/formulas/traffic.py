"""Bytes that a call reads and writes: each element once, which is the least.

A view moves nothing. What is expanded is read once, of a table only the rows that are
looked up, and what is only overwritten is not read. Workspaces, and what a kernel reads
again because its caches are small, are not known.
"""

from math import prod
from typing import Final, NamedTuple

from meta_magic.trace.formulas.operands import name_all, name_of
from meta_magic.trace.formulas.weights import INITIALIZERS
from meta_magic.trace.signature import Geometry, Signature, TensorArgument

__all__ = ["Traffic", "count_traffic"]


class Traffic(NamedTuple):
    """Bytes that one call moves.

    Attributes:
        nbytes_read: Of what it reads.
        nbytes_written: Of what it makes or writes.
    """

    nbytes_read: int
    nbytes_written: int


NOTHING: Final = Traffic(0, 0)

UNTOUCHED: Final = frozenset(
    name_all("""
    empty empty_like empty_strided empty_permuted new_empty new_empty_strided
    _unsafe_view _reshape_alias resize_ set_ resize_as_ detach_ t_ transpose_
    squeeze_ unsqueeze_ as_strided_ swapaxes_ swapdims_ record_stream lift_fresh
    """)
)
"""Make or change a tensor, and touch no element."""

OVERWRITES: Final = {INITIALIZERS} | frozenset(
    name_all("""
    zero_ fill_ copy_ normal_ uniform_ bernoulli_ random_ exponential_
    geometric_ cauchy_ log_normal_ trunc_normal_ _foreach_zero_ _foreach_copy_
    """)
)
"""Write without a look at what was there."""

LOOKS_UP: Final = frozenset(
    name_all("""
    embedding index index_select gather take _unsafe_index nll_loss_forward
    nll_loss2d_forward
    """)
)
"""Read of their first tensor as many elements as they return, or as the others have."""

SETS_PART: Final = frozenset(
    name_all("""
    index_put_ _index_put_impl_ _unsafe_index_put_ index_copy_ index_fill_
    scatter_ scatter_add_ scatter_reduce_ index_add_
    """)
)
"""Write of their first tensor as many elements as they are given."""

ADDS: Final = frozenset(
    name_all("""
    scatter_add_ scatter_reduce_ index_add_
    """)
)
"""Of those, the ones that read what they write."""


def count_traffic(signature: Signature) -> Traffic:
    """Return the bytes of one call; they depend on nothing but its signature."""
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
    """Return the inputs that a call writes; a fused optimizer only scaled gradients."""
    arguments = dict(signature.arguments)
    gradients = arguments.get("grads", ())
    if not name.startswith("aten._fused_") or arguments.get("grad_scale") is not None:
        gradients = ()
    left = {g.index for g in as_tuple(gradients) if isinstance(g, TensorArgument)}
    return [i for i in signature.writes if i not in left]


def count_part(signature: Signature, *, is_added: bool) -> Traffic:
    """Return the bytes of a call that writes some elements of its first tensor."""
    target, *others = signature.inputs
    n_elements = max([prod(g.shape) for g in others], default=0)
    part = min(measure(target), n_elements * target.dtype.itemsize)
    read = sum(measure(g) for g in others)
    return Traffic(read + part if is_added else read, part)


def measure(geometry: Geometry) -> int:
    """Return the bytes of the elements that differ; 0 for a layout without strides."""
    if geometry.stride is None:
        return 0
    pairs = zip(geometry.shape, geometry.stride, strict=True)
    return prod(n for n, step in pairs if step or not n) * geometry.dtype.itemsize


def as_tuple(value: object) -> tuple[object, ...]:
    """Return a value as a tuple."""
    return value if isinstance(value, tuple) else (value,)
