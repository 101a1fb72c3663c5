"""Losses and their gradients, adjusted to what the CPU gives: dtypes, layouts, bytes.

A mean is written over the first of the losses that it is of, whose storage it keeps:
``as_strided`` of it is there on the CPU, and refused on meta.
"""

from collections.abc import Callable, Mapping
from math import prod
from types import MappingProxyType
from typing import Any, Final

import torch
from torch import Tensor

from meta_magic.recording.as_device.cpu_kernels import enlarge_storage

__all__ = ["LOSSES"]


def lay_out_loss_gradient(
    returned: Tensor, _: Tensor, a: Tensor, *__: Any, **___: Any
) -> Tensor:
    """Return a gradient laid out in rows, of the dtype of what it is for.

    Source:
        ``mse_loss_backward`` and its like in ``Loss.cpp`` of torch 2.13, which write
        into new zeros; on meta all are composed of operators that promote.
    """
    if not a.is_meta:
        return returned
    return torch.empty(returned.shape, dtype=a.dtype, device="meta")


def cast_loss_gradient(returned: Tensor, _: Tensor, a: Tensor, *__: Any) -> Tensor:
    """Return a gradient of the dtype of what it is for. Source: as above."""
    return returned.to(a.dtype) if a.is_meta else returned


def lay_out_as_input(returned: Tensor, a: Tensor, *_: Any, **__: Any) -> Tensor:
    """Return a loss of the dtype of its input, laid out as that if it is not reduced.

    Source:
        ``binary_cross_entropy_cpu``, ``huber_loss`` and ``soft_margin_loss`` in
        ``Loss.cpp`` of torch 2.13.
    """
    if not a.is_meta:
        return returned
    return torch.empty_like(a if returned.shape == a.shape else returned, dtype=a.dtype)


def keep_losses(returned: Tensor, a: Tensor, b: Tensor, *_: Any, **__: Any) -> Tensor:
    """Return a loss on the storage of those of all elements, of which it is made.

    Source:
        ``mse_loss_out``, ``smooth_l1_loss_out``, ``soft_margin_loss`` and
        ``binary_cross_entropy_cpu`` in ``Loss.cpp`` of torch 2.13.
    """
    numel = prod(torch.broadcast_shapes(a.shape, b.shape))
    is_kept = returned.is_meta and not returned.ndim
    return enlarge_storage(returned, numel * returned.itemsize) if is_kept else returned


def keep_entropies(returned: Tensor, *args: Any, **given: Any) -> Tensor:
    """Return a loss of the input's dtype on such a storage. Source: as above."""
    return keep_losses(lay_out_as_input(returned, *args, **given), *args)


LOSSES: Final[Mapping[str, Callable[..., Tensor]]] = MappingProxyType(
    {
        "aten.binary_cross_entropy.default": keep_entropies,
        "aten.huber_loss.default": lay_out_as_input,
        "aten.huber_loss_backward.default": lay_out_loss_gradient,
        "aten.mse_loss.default": keep_losses,
        "aten.mse_loss_backward.default": lay_out_loss_gradient,
        "aten.smooth_l1_loss.default": keep_losses,
        "aten.smooth_l1_loss_backward.default": lay_out_loss_gradient,
        "aten.soft_margin_loss.default": keep_entropies,
        "aten.soft_margin_loss_backward.default": cast_loss_gradient,
    }
)
"""By the operator's name; as in ``adjustments``."""
