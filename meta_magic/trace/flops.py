"""Count the floating-point operations of a signature, by torch's formulas if it can."""

from collections.abc import Callable, Mapping, Sequence
from math import prod
from types import MappingProxyType
from typing import Any, Final

import torch

from meta_magic.torch_private.attention_operators import (
    ON_CPU,
    fast_attention,
    fast_encoder_layer,
)
from meta_magic.torch_private.dispatcher import schema_of
from meta_magic.torch_private.product_operators import grouped_product
from meta_magic.trace.signature import Argument, Geometry, Signature, TensorArgument

__all__ = ["count_flops"]

# Its formula takes a grouped convolution's backward for an ungrouped one.
MISCOUNTED = "aten.convolution_backward"


Shape = Sequence[int]


def attention_flops(query: Shape, key: Shape, *_: object, **__: object) -> int:
    """Count three projections, the products with two of them, and the last one."""
    (n, n_queries, width), n_keys = query, key[1]
    n_projected = 2 * n_queries + 2 * n_keys
    return 2 * n * width * (n_projected * width + 2 * n_queries * n_keys)


def encoder_flops(src: Shape, *rest: Any, **__: object) -> int:
    """Count attention of one sequence to itself, and two layers behind it."""
    hidden = rest[FIRST_LAYER - 1]
    return attention_flops(src, src) + 4 * prod(src) * int(hidden[0])


def grouped_flops(a: Shape, b: Shape, *_: object, **__: object) -> int:
    """Count a product for each group; a side without groups is cut into them."""
    both = zip(a[:-2], b[:-2], strict=False)
    return 2 * prod(n for n, _ in both) * prod(a[-2:]) * b[-1]


def lstm_flops(
    inputs: Shape, to_input: Shape, to_hidden: Shape, *_: object, **__: object
) -> int:
    """Count the two products of each step, for one layer in one direction."""
    return 2 * prod(inputs[:-1]) * (prod(to_input) + prod(to_hidden))


def lstm_backward_flops(*shapes: Any, **__: object) -> int:
    """Count a gradient of both sides of each product."""
    return 2 * lstm_flops(*shapes)


FIRST_LAYER: Final = 14
"""Where an encoder's layer is given the weight of its first linear layer."""

OWN: Final[Mapping[Any, Callable[..., int]]] = MappingProxyType(
    {
        fast_attention: attention_flops,
        fast_encoder_layer: encoder_flops,
        grouped_product: grouped_flops,
        torch.ops.aten.mkldnn_rnn_layer: lstm_flops,
        torch.ops.aten.mkldnn_rnn_layer_backward: lstm_backward_flops,
    }
)
"""Formulas that torch lacks."""


def count_flops(signature: Signature) -> int | None:
    """Return the operations of one call, 2 for each multiply-add.

    Args:
        signature: The call; FLOPs depend on nothing else.

    Returns:
        The number of operations, or None where torch has no formula that holds:
        everything but matrix products, convolutions and fused attention. None, too,
        where nothing was returned, as of a call that raised.

    Source:
        ``torch.utils.flop_counter.flop_registry``, and ``OWN``.
    """
    formula = find_formula(signature.op) if signature.outputs else None
    if formula is None or is_miscounted(signature):
        return None
    arguments = {n: shape_of(v, signature.inputs) for n, v in signature.arguments}
    positional = [
        v for n, v in arguments.items() if n not in keyword_names(signature.op)
    ]
    keywords = {n: v for n, v in arguments.items() if n in keyword_names(signature.op)}
    try:
        returned = shape_of(signature.returns, signature.outputs)
        return int(formula(*positional, **keywords, out_val=returned))
    except (AttributeError, AssertionError, LookupError, TypeError):
        return None  # a formula that wants the tensors themselves


def find_formula(op: str) -> Any:
    """Return the formula for an operator's name, or None."""
    from torch.utils.flop_counter import flop_registry  # noqa: PLC0415  0.2 s, first use

    namespace, _, rest = op.partition(".")
    name = rest.partition(".")[0].replace(ON_CPU, "")
    packet = getattr(getattr(torch.ops, namespace, None), name, None)
    return flop_registry.get(packet, OWN.get(packet))


def keyword_names(op: str) -> frozenset[str]:
    """Return the names of the keyword-only arguments of an operator."""
    namespace, name, overload = op.split(".")
    packet = getattr(getattr(torch.ops, namespace), name)
    schema = schema_of(getattr(packet, overload))
    return frozenset(a.name for a in schema.arguments if a.kwarg_only)


def is_miscounted(signature: Signature) -> bool:
    """Whether torch's formula is known to be wrong for this call."""
    is_backward = signature.op.startswith(MISCOUNTED)
    return is_backward and dict(signature.arguments).get("groups") != 1


def shape_of(value: Argument, tensors: Sequence[Geometry]) -> Any:
    """Return a value as the formulas take it: shapes in place of tensors."""
    if isinstance(value, TensorArgument):
        return torch.Size(tensors[value.index].shape)
    if isinstance(value, tuple) and any(isinstance(v, TensorArgument) for v in value):
        return tuple(shape_of(item, tensors) for item in value)
    return value
