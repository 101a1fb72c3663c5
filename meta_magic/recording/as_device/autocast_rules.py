"""Which way autocast casts the arguments of each operator, on the CPU and on CUDA.

Source: ``aten/src/ATen/autocast_mode.h`` and ``autocast_mode.cpp`` of torch 2.13.
"""

from collections.abc import Sequence
from typing import Any, Final

import torch
from torch import Tensor

from meta_magic.recording.signatures.arguments import Args, Kwargs
from meta_magic.torch_private.dispatcher import (
    DispatchKey,
    has_kernel,
    list_kernels,
    schema_of,
)

__all__ = [
    "ATTENTION",
    "BANNED",
    "LOWER",
    "PROMOTED",
    "UNSAFE",
    "WITH_DTYPE",
    "WITH_LAST_DTYPE",
    "find_operator",
    "flatten",
    "is_eligible",
    "list_casts",
    "read_nesting",
    "tell_dtype",
]

ATEN: Final = "aten::"
ATTENTION: Final = "scaled_dot_product_attention"

LOWER_NAMES: Final = """
_convolution.deprecated _convolution conv1d conv1d.padding conv2d conv2d.padding conv3d
conv3d.padding conv_tbc conv_transpose1d conv_transpose2d.input conv_transpose3d.input
convolution cudnn_convolution cudnn_convolution_transpose prelu addmm _addmm_activation
addmv addr matmul einsum mm mv linalg_vecdot linear addbmm baddbmm bmm chain_matmul
linalg_multi_dot mkldnn_rnn_layer _thnn_fused_lstm_cell _thnn_fused_gru_cell lstm_cell
gru_cell rnn_tanh_cell rnn_relu_cell _scaled_dot_product_flash_attention
scaled_dot_product_attention _native_multi_head_attention
"""
LOWER: Final = frozenset(LOWER_NAMES.split())
"""Operators whose arguments are cast to autocast's dtype."""

PROMOTED_NAMES: Final = """
addcdiv addcmul atan2 bilinear cross dot vdot grid_sampler index_put tensordot
scatter_add stack cat index_copy
"""
PROMOTED: Final = frozenset(PROMOTED_NAMES.split())
"""Operators whose arguments are cast to the widest of their dtypes."""

NAMES_WITH_DTYPE: Final = """
prod prod.dim_int softmax.int log_softmax.int cumprod cumsum linalg_vector_norm
linalg_matrix_norm linalg_matrix_norm.str_ord sum sum.dim_IntList
"""
WITH_DTYPE: Final = frozenset(NAMES_WITH_DTYPE.split())
"""On CUDA: operators that are told to return float32; all others compute in it."""

WITH_LAST_DTYPE: Final = {
    "norm.Scalar": "norm.ScalarOpt_dtype",
    "norm.ScalarOpt_dim": "norm.ScalarOpt_dim_dtype",
}
"""On CUDA: those that have an overload for that."""

BANNED: Final = "binary_cross_entropy"
UNSAFE: Final = (
    "binary_cross_entropy is unsafe to autocast on CUDA, as torch says there: use "
    "binary_cross_entropy_with_logits"
)


def tell_dtype(name: str, args: Args, kwargs: Kwargs) -> tuple[Args, Kwargs]:
    """Return arguments with float32 as the dtype to return, if they tell none."""
    names = [a.name for a in schema_of(find_operator(name)[0]).arguments]
    place = names.index("dtype")
    if len(args) <= place:
        told = kwargs.get("dtype") or torch.float32
        return args, {**kwargs, "dtype": told}
    return (*args[:place], args[place] or torch.float32, *args[place + 1 :]), kwargs


def find_operator(name: str) -> tuple[Any, Any]:
    """Return an operator of ``aten``, and the key of its kernel for autograd."""
    packet, _, overload = name.partition(".")
    operator = getattr(getattr(torch.ops.aten, packet), overload or "default")
    is_composite = has_kernel(f"aten::{name}", "CompositeImplicitAutograd")
    if is_composite:
        return operator, DispatchKey.CompositeImplicitAutograd
    return operator, DispatchKey.Autograd


def list_casts(device: str) -> tuple[frozenset[str], frozenset[str]]:
    """Return the operators that a device's autocast casts: torch's, and others."""
    kernels = frozenset(list_kernels(f"Autocast{device.upper()}"))
    own = {name for name in kernels if name.startswith(ATEN)}
    return frozenset(name.removeprefix(ATEN) for name in own), kernels - own


def is_eligible(value: Any) -> bool:
    """Whether autocast may cast an argument, were it on the device."""
    return (
        isinstance(value, Tensor)
        and value.is_meta
        and value.is_floating_point()
        and value.dtype != torch.float64
    )


def flatten(values: Sequence[Any]) -> list[Tensor]:
    """Return the tensors among values that autocast may cast."""
    found: list[Tensor] = []
    for value in values:
        if isinstance(value, (list, tuple)):
            found += flatten(value)
        elif is_eligible(value):
            found.append(value)
    return found


def read_nesting() -> int:
    """Return in how many regions of autocast this thread is."""
    torch.autocast_increment_nesting()
    return int(torch.autocast_decrement_nesting())
