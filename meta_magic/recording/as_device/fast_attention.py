"""What the fast paths of attention in eval mode return, and refuse, on the CPU.

torch's meta kernels look at no size. Wrong arguments raise here in whatever words: the
CPU is asked for its own then. Source: ``native_multi_head_attention_cpu`` in
``attention.cpp`` and ``transformer_encoder_layer_forward`` in ``transformer.cpp``.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import layer_norm, linear

__all__ = ["attend", "encode"]

PADDING, BOTH = 1, 2
"""Kinds of masks: of keys that are padding, and those merged for each head."""


def attend(  # noqa: PLR0913, PLR0917  the operator's own
    _: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    embed_dim: int,
    num_head: int,
    qkv_weight: Tensor,
    qkv_bias: Tensor,
    proj_weight: Tensor,
    proj_bias: Tensor,
    mask: Tensor | None = None,
    need_weights: bool = True,  # noqa: FBT001, FBT002
    average_attn_weights: bool = True,  # noqa: FBT001, FBT002
    mask_type: int | None = None,
) -> tuple[Tensor, Tensor | None]:
    """Return attention, and its weights where they are wanted.

    Shape:
        ``(b, t, d)`` and ``(b, t, s)``, or ``(b, h, t, s)`` if they are not averaged.
    """
    (n, n_queries, width), n_keys = query.shape, key.shape[1]
    require(width == embed_dim and not embed_dim % num_head)
    require(key.shape == value.shape == (n, n_keys, embed_dim))
    require_alike(query, key, value, qkv_weight, qkv_bias, proj_weight, proj_bias)
    for weight in qkv_weight.split(embed_dim):
        require(weight.shape == (embed_dim, embed_dim))
    require(qkv_bias.shape == qkv_weight.shape[:1] == (3 * embed_dim,))
    if not query.numel():
        return torch.empty_like(query), None
    if mask is not None:
        require(is_fitting(mask, mask_type, (n, num_head, n_queries, n_keys)))
    made = linear(query.new_empty(query.shape), proj_weight, proj_bias)
    heads = () if average_attn_weights else (num_head,)
    weights = query.new_empty((n, *heads, n_queries, n_keys))
    return made, weights if need_weights else None


def is_fitting(
    mask: Tensor, mask_type: int | None, shape: tuple[int, int, int, int]
) -> bool:
    """Whether a mask is one of weights of ``shape``."""
    n, _, n_queries, n_keys = shape
    if mask_type == PADDING:
        return mask.shape == (n, n_keys)
    return mask.shape == (shape if mask_type == BOTH else (n_queries, n_keys))


def encode(  # noqa: PLR0913, PLR0917  the operator's own
    returned: Any,
    src: Tensor,
    embed_dim: int,
    num_heads: int,
    qkv_weight: Tensor,
    qkv_bias: Tensor,
    proj_weight: Tensor,
    proj_bias: Tensor,
    use_gelu: bool,  # noqa: ARG001, FBT001
    norm_first: bool,  # noqa: ARG001, FBT001
    eps: float,
    norm_weight_1: Tensor,
    norm_bias_1: Tensor,
    norm_weight_2: Tensor,
    norm_bias_2: Tensor,
    ffn_weight_1: Tensor,
    ffn_bias_1: Tensor,
    ffn_weight_2: Tensor,
    ffn_bias_2: Tensor,
    mask: Tensor | None = None,
    mask_type: int | None = None,
) -> Tensor:
    """Return what a layer of an encoder does. Shape: ``(b, t, d)``."""
    if not src.numel():
        return src.clone()
    projections = (qkv_weight, qkv_bias, proj_weight, proj_bias)
    heads = (embed_dim, num_heads)
    operands = (src, src, src, *heads, *projections, mask)
    made, _ = attend(returned, *operands, mask_type=mask_type)
    require_alike(src, ffn_weight_1, ffn_bias_1, ffn_weight_2, ffn_bias_2)
    made += src
    made = layer_norm(made, (embed_dim,), norm_weight_1, norm_bias_1, eps)
    hidden = linear(made, ffn_weight_1, ffn_bias_1)
    made += linear(hidden, ffn_weight_2, ffn_bias_2)
    return layer_norm(made, (embed_dim,), norm_weight_2, norm_bias_2, eps)


def require_alike(*tensors: Tensor) -> None:
    """Raise unless tensors have one dtype."""
    require(len({tensor.dtype for tensor in tensors}) == 1)


def require(is_right: bool) -> None:  # noqa: FBT001
    """Raise unless arguments are right."""
    if not is_right:
        raise ValueError("wrong arguments")
