"""Kernels on meta that torch composes in Python of many, said in one step.

They answer plain calls alone; what is unusual, or wrong, is left to torch's own.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final

import torch
from torch import Tensor
from torch.nn.parameter import Parameter

__all__ = ["SHORT_KERNELS"]

PLAIN: Final = (Tensor, Parameter)


def multiply_and_add(bias: Tensor, a: Tensor, b: Tensor, **scales: Any) -> Any:
    """Return what ``addmm`` does: a new tensor in rows, whatever the strides.

    Source:
        ``aten/src/ATen/native/LinearAlgebra.cpp`` of torch 2.13. On meta it is that of
        ``torch/_decomp/decompositions.py``, which takes 0.4 ms, mostly to say no more.
    """
    is_usual = (
        all(type(given) in PLAIN and given.is_meta for given in (bias, a, b))
        and (a.dim(), b.dim(), bias.dim()) == (2, 2, 1)
        and a.shape[1] == b.shape[0]
        and bias.shape[0] in {1, b.shape[1]}
        and bias.dtype is a.dtype is b.dtype
        and a.is_floating_point()
    )
    if not is_usual:
        return torch.ops.aten.addmm.default(bias, a, b, **scales)
    return torch.empty((a.shape[0], b.shape[1]), dtype=a.dtype, device="meta")


SHORT_KERNELS: Final[Mapping[str, Callable[..., Any]]] = MappingProxyType(
    {
        "aten.addmm.default": multiply_and_add,
        # On a device it wraps its argument; on meta it makes another tensor.
        "_c10d_functional._wrap_tensor_autograd.default": torch.ops.aten.alias.default,
    }
)
"""By the name of the operator."""
