"""What kernels keep beyond what meta says: results on a storage that is larger.

A loss that is reduced is computed in the storage of its result, element by element,
and then made smaller: the storage stays.

Source:
    ``Loss.cpp`` and ``Loss.cu`` of torch 2.13: ``resize_`` of the output. Of torch's
    operator database no other operators differ
    (``tests/conformance/kept_storages.py``).
"""

from collections.abc import Callable, Mapping, Sequence
from math import prod
from types import MappingProxyType
from typing import Final, TypeAlias

import torch

from meta_magic.trace.signature import Signature

__all__ = ["KEPT"]

Keep: TypeAlias = Callable[[Signature], Sequence[int]]
"""Returns the bytes of the storages of what a signature returns."""


def keep_elements(signature: Signature) -> Sequence[int]:
    """Return the bytes of one result for each element of both operands."""
    first, second = signature.inputs[:2]
    shape = torch.broadcast_shapes(first.shape, second.shape)
    return [prod(shape) * made.dtype.itemsize for made in signature.outputs]


KEPT: Final[Mapping[str, Keep]] = MappingProxyType(
    dict.fromkeys(
        (
            "aten.mse_loss.default",
            "aten.smooth_l1_loss.default",
            "aten.binary_cross_entropy.default",
            "aten.soft_margin_loss.default",
        ),
        keep_elements,
    )
)
"""By operator."""
