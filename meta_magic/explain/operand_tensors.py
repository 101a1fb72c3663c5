"""Tensors like the operands of a failed call, of other sizes perhaps."""

from collections.abc import Sequence
from math import prod
from typing import Final

import torch
from torch import Tensor

from meta_magic.trace.failed_call import Operand

__all__ = ["make_like"]

MAX_NUMEL: Final = 100_000
"""How many values an operand may have on the CPU."""


def make_like(operand: Operand, sizes: Sequence[int], device: str) -> Tensor:
    """Return a tensor with an operand's metadata, of other sizes perhaps.

    Its dimensions lie in memory in the order in which the operand's do.

    Raises:
        MemoryError: It is to have values, and too many.
    """
    geometry = operand.geometry
    shape, stride = tuple(sizes), geometry.stride
    if device != "meta" and prod(shape) > MAX_NUMEL:
        raise MemoryError
    if stride is None:
        steps = dense(shape)
    elif shape == geometry.shape:
        steps = [*stride]
    else:
        order = sorted(range(len(shape)), key=lambda dim: (-stride[dim], dim))
        ordered = dense([shape[dim] for dim in order])
        steps = [ordered[order.index(dim)] for dim in range(len(shape))]
    tensor = torch.empty_strided(shape, steps, dtype=geometry.dtype, device=device)
    if device != "meta":
        tensor.zero_()
    tensor.requires_grad_(operand.requires_grad)
    return tensor if operand.is_leaf else tensor.clone()


def dense(shape: Sequence[int]) -> list[int]:
    """Return the strides of a tensor without gaps."""
    return [prod(shape[dim + 1 :]) for dim in range(len(shape))]
