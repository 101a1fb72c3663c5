"""Operators with assumed values: a mask's so many true elements, or numbers read."""

from collections.abc import Sequence
from math import prod
from typing import Any, Final

import torch
from torch import Generator, Tensor

from meta_magic.replaying.call_arguments import CallArguments
from meta_magic.replaying.operators import Operator, find_function
from meta_magic.trace.program_facts import Assumption
from meta_magic.trace.signature import Signature

__all__ = ["AssumedOperator", "fill"]

COPY: Final = "aten._to_copy.default"
NONZERO: Final = "aten.nonzero.default"
MASKS: Final = (torch.bool, torch.uint8)


class AssumedOperator(Operator):
    """An operator that is given a mask with as many true elements as was assumed.

    They are spread evenly, so that it can be run where the mask itself cannot be had.
    A copy to the CPU returns the numbers that were assumed.
    """

    def __init__(self, signature: Signature, assumption: Assumption) -> None:
        super().__init__(signature.op, find_function(signature.op))
        self._assumption = assumption
        self._count = assumption.n_true
        self._is_copy = signature.op == COPY
        self.unread = frozenset(
            index
            for index, geometry in enumerate(signature.inputs)
            if signature.op in (NONZERO, COPY) or (index and geometry.dtype in MASKS)
        )

    def call(
        self,
        arguments: CallArguments,
        tensors: Sequence[Tensor],
        device: torch.device,
        generator: Generator | None,
    ) -> Any:
        """Call the operator; see :meth:`Operator.call`."""
        if self._is_copy:
            (made,) = arguments.signature.outputs
            return fill(self._assumption, made.shape, made.dtype)
        given = [
            spread(self._count, tensor) if index in self.unread else tensor
            for index, tensor in enumerate(tensors)
        ]
        return super().call(arguments, given, device, generator)


def fill(assumption: Assumption, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """Return the numbers that were assumed, on the CPU."""
    if assumption.value is not None:
        return torch.full(tuple(shape), assumption.value, dtype=dtype, device="cpu")
    numel = prod(shape)
    ends = torch.arange(numel + 1, device="cpu") * assumption.n_true // max(1, numel)
    return ends.diff().view(tuple(shape)).to(dtype)


def spread(count: int, like: Tensor) -> Tensor:
    """Return a mask of the shape of a tensor, ``count`` of its elements true."""
    numbers = torch.arange(like.numel(), device=like.device)
    # True wherever the running share of true elements reaches the next whole number.
    flat = (numbers + 1) * count // max(1, like.numel()) > (
        numbers * count // max(1, like.numel())
    )
    return flat.view(like.shape)
