"""What kernels keep beyond what meta says: results on a storage that is larger.

A loss that is reduced is computed in the storage of its result, element by element,
and then made smaller: the storage stays.

Source:
    ``BinaryOps.cpp`` and ``Loss.cpp`` of torch 2.13: ``resize_`` of the output; and
    ``EmbeddingBag.cpp``. Of torch's operator database no others differ
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


def keep_ends(signature: Signature) -> Sequence[int]:
    """Return the bytes of a bag of embeddings: of each element its bag, and an end.

    On CUDA there is no end: eight bytes less.
    """
    made = signature.outputs
    nbytes = [prod(g.shape) * g.dtype.itemsize for g in made[:2]]
    return [nbytes[0], nbytes[1] and nbytes[1] + made[1].dtype.itemsize]


KEPT: Final[Mapping[str, Keep]] = MappingProxyType(
    {
        "aten.mse_loss.default": keep_elements,
        "aten.smooth_l1_loss.default": keep_elements,
        "aten.binary_cross_entropy.default": keep_elements,
        "aten.soft_margin_loss.default": keep_elements,
        "aten._embedding_bag.default": keep_ends,
    }
)
"""By operator."""
