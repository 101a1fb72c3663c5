"""What sparse tensors are made of: positions, and values at them."""

from collections.abc import Sequence
from typing import Final

import torch
from torch import Tensor, UntypedStorage

# Without it what a sparse tensor is made of cannot be read in inference mode.
from torch._C import _AutoDispatchBelowAutograd as BelowAutograd

from meta_magic.torch_private.modes import DisableTorchDispatch, DisableTorchFunction

__all__ = [
    "CONSTRUCTORS",
    "POSITIONS",
    "READERS",
    "RIGHT_ON_META",
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

CONSTRUCTORS: Final = frozenset(
    {
        "aten._sparse_coo_tensor_with_dims_and_tensors.default",
        "aten.sparse_compressed_tensor.comp_plain_value_size",
    }
)
"""Operators that make a sparse tensor of positions and values, and share these."""

POSITIONS: Final = frozenset(
    f"aten.{name}.default"
    for name in (
        *("_indices", "indices", "crow_indices", "col_indices"),
        *("ccol_indices", "row_indices"),
    )
)
"""Operators that return the positions of a sparse tensor."""

RIGHT_ON_META: Final = POSITIONS | frozenset(
    f"aten.{name}.default"
    for name in (
        *("_values", "values", "_nnz", "is_coalesced", "sparse_dim", "dense_dim"),
        *("detach", "alias", "_coalesced_", "zero_", "zeros_like", "empty_like"),
        "_to_dense",
    )
)
"""Operators that look into a sparse tensor, make none of elements, or a dense one.
Without it each of them would be asked of the CPU, or copy what is shared."""

READERS: Final = ("aten._to_sparse", "aten._spdiags.")
"""How the names of operators begin that read which elements are not zero, or where."""


def parts_of(tensor: Tensor) -> tuple[Tensor, ...]:
    """Return the positions that a sparse tensor holds, and last its values.

    All share the memory of the tensor; a dense one is returned itself. Without it two
    sparse tensors of different numbers of elements could not be told apart.
    """
    if tensor.layout not in SPARSE:
        return (tensor,)
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
        if like.layout is torch.sparse_coo:
            positions, values = parts
            return torch.sparse_coo_tensor(
                *(positions, values, shape),
                is_coalesced=is_coalesced,
                check_invariants=False,
            )
        starts, positions, values = parts
        return torch.sparse_compressed_tensor(
            *(starts, positions, values, shape),
            layout=like.layout,
            check_invariants=False,
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
