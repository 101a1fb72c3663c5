"""How Python's ``copy``, and torch for it and ``pickle``, make tensors anew."""

import copy
from typing import Any, Final

import torch
from torch import Tensor, UntypedStorage
from torch.utils import checkpoint

__all__ = [
    "CHECKPOINTING",
    "PICKLING",
    "REBUILD",
    "REBUILDING",
    "RECONSTRUCTING",
    "REDUCE",
    "copy_lazy_bits",
    "set_lazy_bits",
    "type_storage",
]

REBUILDING: Final = torch._utils._rebuild_meta_tensor_no_storage.__code__
"""What makes a tensor on meta that was pickled. Without it, and the next, copies of
tensors by ``copy.copy`` and ``pickle`` are without content, and nobody says so."""

REBUILD: Final = (torch._utils, "_rebuild_tensor")
"""What makes a tensor that was pickled with its values. Without it, and the next, what
a cell pickles and loads again has no values, or is real and cannot be written to."""

REDUCE: Final = (Tensor, "_reduce_ex_internal")
"""What says what a tensor is pickled as."""

PICKLING: Final = Tensor._reduce_ex_internal.__code__
"""What asks a tensor for its device when it is pickled. Without it a copy of a tensor
that is on meta for a GPU, by ``copy.copy`` or ``pickle``, is an error."""

CHECKPOINTING: Final = checkpoint._default_meta_extractor.__code__
"""What checkpointing compares of a tensor and of that which is computed again, of which
one is asked in C++, unseen. Without it a checkpoint on a planned GPU fails."""

RECONSTRUCTING: Final = copy._reconstruct.__code__  # type: ignore[attr-defined]  # not in its stub


def copy_lazy_bits(made: Tensor, tensor: Tensor) -> None:
    """Have a tensor conjugated or negated lazily as another one is.

    By what ``pickle`` and ``copy`` do it with: without it a copy of ``x.conj()`` has
    the values of ``x``.
    """
    torch._utils.set_tensor_metadata(made, torch._utils.get_tensor_metadata(tensor))


def set_lazy_bits(made: Tensor, tensor: Tensor) -> None:
    """Have a tensor conjugated or negated lazily just if another one is.

    Without it ``x.data = y.conj()`` fails on meta.
    """
    torch._C._set_conj(made, tensor.is_conj())
    torch._C._set_neg(made, tensor.is_neg())


def type_storage(storage: UntypedStorage, dtype: torch.dtype) -> Any:
    """Return what a tensor is unpickled from: without it that is real in a cell."""
    return torch.TypedStorage(wrap_storage=storage, dtype=dtype, _internal=True)
