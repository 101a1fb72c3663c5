"""What sparse tensors are made of: positions, and values at them."""

from collections.abc import Sequence
from typing import Final

import torch
from torch import Tensor, UntypedStorage

# Without it what a sparse tensor is made of cannot be read in inference mode.
from torch._C import _AutoDispatchBelowAutograd as BelowAutograd

from meta_magic.torch_private.modes import DisableTorchDispatch, DisableTorchFunction

__all__ = [
    "SPARSE",
    "build_sparse",
    "has_coalesced",
    "parts_of",
    "plan_part",
    "storage_under",
]

BY_ROWS: Final = frozenset({torch.sparse_csr, torch.sparse_bsr})
BY_COLUMNS: Final = frozenset({torch.sparse_csc, torch.sparse_bsc})
SPARSE: Final = BY_ROWS | BY_COLUMNS | {torch.sparse_coo}
"""Layouts of tensors that hold positions, and values at them."""


def parts_of(tensor: Tensor) -> tuple[Tensor, ...]:
    """Return the positions that a sparse tensor holds, and last its values.

    All share the memory of the tensor. Without it two sparse tensors of different
    numbers of elements could not be told apart.
    """
    with DisableTorchFunction(), DisableTorchDispatch(), BelowAutograd():
        if tensor.layout in BY_ROWS:
            return tensor.crow_indices(), tensor.col_indices(), tensor.values()
        if tensor.layout in BY_COLUMNS:
            return tensor.ccol_indices(), tensor.row_indices(), tensor.values()
        return tensor._indices(), tensor._values()


def has_coalesced(tensor: Tensor) -> bool:
    """Whether a tensor of coordinates is marked as holding each position once."""
    with DisableTorchFunction(), DisableTorchDispatch(), BelowAutograd():
        return tensor.layout is torch.sparse_coo and tensor.is_coalesced()


def build_sparse(
    like: Tensor, parts: Sequence[Tensor], *, is_coalesced: bool = False
) -> Tensor:
    """Return a sparse tensor of the size and layout of another one.

    Args:
        like: The other one.
        parts: Positions and values, as ``parts_of`` returns them.
        is_coalesced: Whether coordinates are marked as holding each position once.
    """
    shape = Tensor.size(like)
    with DisableTorchFunction(), DisableTorchDispatch(), BelowAutograd():
        if like.layout is not torch.sparse_coo:
            options = {"layout": like.layout, "check_invariants": False}
            return torch.sparse_compressed_tensor(*parts, shape, **options)
        return torch.sparse_coo_tensor(
            *parts, shape, is_coalesced=is_coalesced, check_invariants=False
        )


def plan_part(real: Tensor) -> Tensor:
    """Return a meta tensor with the strides of a real one, and as large a storage."""
    with DisableTorchFunction(), DisableTorchDispatch(), BelowAutograd():
        planned = torch.empty(0, dtype=real.dtype, device="meta")
        storage = torch.UntypedStorage(real.untyped_storage().nbytes(), device="meta")
        offset = int(real.storage_offset())
        return planned.set_(storage, offset, real.shape, real.stride())


def storage_under(tensor: Tensor) -> UntypedStorage:
    """Return the storage of a tensor; of a sparse one on meta that of its values.

    Without it nobody knows which sparse tensor an operator reads.

    Raises:
        NotImplementedError: It has none.
    """
    try:
        return Tensor.untyped_storage(tensor)
    except NotImplementedError:
        if not tensor.is_meta or tensor.layout not in SPARSE:
            raise
        return parts_of(tensor)[-1].untyped_storage()
