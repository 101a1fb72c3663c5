"""Copies by Python's ``copy`` and ``pickle``, of which torch makes others on meta.

``copy.deepcopy`` copies a storage once, so that what shares one still does; on meta
torch clones each tensor. ``copy.copy`` gives another tensor on the same storage; on
meta torch makes a new one without content, as it does of what is unpickled.
"""

import copy
from collections.abc import Callable
from itertools import islice
from traceback import walk_stack
from types import FrameType
from typing import Any, Final

import torch
from torch import Tensor

from meta_magic.recording.identities.geometries import span_nbytes
from meta_magic.recording.signatures.arguments import Args
from meta_magic.torch_private.copying import REBUILDING, RECONSTRUCTING
from meta_magic.torch_private.tensor_internals import address_of_storage

__all__ = ["DEEPCOPY", "REBUILDING", "UNPICKLED", "copy_deeply", "copy_flatly"]

DEEPCOPY: Final[Any] = Tensor.__deepcopy__
UNPICKLED: Final = (
    "a tensor was unpickled without data: of what is on meta, pickle keeps shapes "
    "alone (see copy.deepcopy, which copies the values, too)"
)
COPIES: Final = "meta_magic"
"""Where the copied storages stand in the memo of ``copy.deepcopy``."""

MAX_FRAMES: Final = 3


def copy_deeply(args: Args, note_alias: Callable[[Tensor], None]) -> Tensor:
    """Return a copy of a tensor, on a copy of its storage that its aliases share.

    Args:
        args: The tensor and the memo of ``copy.deepcopy``.
        note_alias: Is told of a tensor on whose storage another one is made.
    """
    tensor, memo = args
    is_plain = type(tensor) is Tensor and tensor.layout is torch.strided
    is_lazy = tensor.is_conj() or tensor.is_neg() or not tensor.is_leaf
    if not is_plain or is_lazy or tensor.is_quantized or id(tensor) in memo:
        made: Tensor = DEEPCOPY(tensor, memo)
        return made
    copies = memo.setdefault(COPIES, {})
    address = address_of_storage(tensor.untyped_storage())
    with torch.no_grad():
        is_first = address not in copies
        if is_first:
            whole = tensor if is_whole(tensor) else flatten(tensor)
            copies[address] = whole.clone()
        made = copies[address]
        if not (is_first and is_whole(tensor)):
            note_alias(made)
            made = lay_out(made, tensor).data
        made.requires_grad_(tensor.requires_grad)
        if tensor.grad is not None:
            made.grad = copy.deepcopy(tensor.grad, memo)
        made.__dict__ = copy.deepcopy(tensor.__dict__, memo)
    memo[id(tensor)] = made
    return made


def is_whole(tensor: Tensor) -> bool:
    """Whether a tensor's elements are all of its storage, each once."""
    nbytes = tensor.untyped_storage().nbytes()
    return tensor.nbytes == span_nbytes(tensor) == nbytes and 0 not in tensor.stride()


def flatten(tensor: Tensor) -> Tensor:
    """Return a view of the whole storage of a tensor."""
    n_elements = tensor.untyped_storage().nbytes() // tensor.itemsize
    return tensor.as_strided((n_elements,), (1,), 0)


def lay_out(whole: Tensor, like: Tensor) -> Tensor:
    """Return a view of a storage that is laid out as another tensor is on its own."""
    if whole.dtype != like.dtype:
        whole = flatten(whole).view(like.dtype)
    return whole.as_strided(like.shape, like.stride(), like.storage_offset())


def copy_flatly(
    caller: FrameType, note_alias: Callable[[Tensor], None]
) -> Tensor | None:
    """Return another tensor on the storage of that which ``copy.copy`` copies now.

    Args:
        caller: The frame in which torch makes a tensor without content instead.
        note_alias: Is told of the tensor.

    Returns:
        That; None if it is unpickled.
    """
    for frame, _ in islice(walk_stack(caller), MAX_FRAMES):
        copied = frame.f_locals["x"] if frame.f_code is RECONSTRUCTING else None
        if isinstance(copied, Tensor):
            note_alias(copied)
            return copied.data.requires_grad_(copied.requires_grad)
    return None
