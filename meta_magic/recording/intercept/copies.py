"""Copy tensors by Python's ``copy`` and ``pickle`` as on the CPU.

Tensors that share a storage share its copy in ``copy.deepcopy``, and ``copy.copy``
returns another tensor on the same storage. On meta torch clones each tensor instead, or
makes a new storage without content. A tensor is pickled with its computed values
(``saving.py``); an unpickled one is a constant on meta.
"""

import copy
from itertools import islice
from traceback import walk_stack
from types import FrameType
from typing import Any, Final

import torch
from torch import Tensor, UntypedStorage

from meta_magic.recording.identities.tensors import TensorRegistry
from meta_magic.recording.signatures.entries import Args
from meta_magic.torch_private.modes import DisableTorchFunction
from meta_magic.torch_private.tensor_internals import RECONSTRUCTING, copy_lazy_bits

DEEPCOPY: Final[Any] = Tensor.__deepcopy__
UNPICKLED: Final = (
    "a tensor was unpickled without data: its values were not computed when it was "
    "pickled, and so pickle kept its shape alone (see copy.deepcopy)"
)
MAX_FRAMES: Final = 10
COPYING: Final = copy.copy.__code__


def copy_deeply(args: Args, registry: TensorRegistry) -> Tensor:
    """Return a copy of a tensor, on a copy of its storage that its aliases share."""
    tensor, memo = args
    is_plain = type(tensor) is Tensor and tensor.layout is torch.strided
    if not is_plain or not tensor.is_leaf or tensor.is_quantized or id(tensor) in memo:
        made: Tensor = DEEPCOPY(tensor, memo)
        return made
    registry.note_alias(tensor)
    with torch.no_grad():
        storage = copy.deepcopy(tensor.untyped_storage(), memo)
        made = tensor.new_empty(())
        made.set_(storage, tensor.storage_offset(), tensor.shape, tensor.stride())
        with DisableTorchFunction():
            registry.note_deaths()
            registry.set_placement(made, registry.placement_of(tensor))
        if tensor.is_conj():
            made = made.conj_physical()
        if tensor.is_neg():
            made = made.neg()
        made.requires_grad_(tensor.requires_grad)
        if tensor.grad is not None:
            made.grad = copy.deepcopy(tensor.grad, memo)
        made.__dict__ = copy.deepcopy(tensor.__dict__, memo)
    memo[id(tensor)] = made
    return made


def is_copying(caller: FrameType) -> bool:
    """Whether ``copy.copy`` asks how a tensor is pickled, in or below a frame."""
    frames = islice(walk_stack(caller), MAX_FRAMES)
    return any(frame.f_code is COPYING for frame, _ in frames)


def find_copied(caller: FrameType) -> object:
    """Return the object that ``copy.copy`` copies in or below a frame; None if none."""
    for frame, _ in islice(walk_stack(caller), MAX_FRAMES):
        if frame.f_code is RECONSTRUCTING:
            return frame.f_locals["x"]
    return None


def copy_shallowly(caller: FrameType, registry: TensorRegistry) -> Tensor | None:
    """Return another tensor on the storage of the one that ``copy.copy`` copies now."""
    copied = find_copied(caller)
    if not isinstance(copied, Tensor):
        return None
    registry.note_alias(copied)
    made = rebuild_on(copied.untyped_storage(), copied, copied.storage_offset())
    if copied.is_conj() or copied.is_neg():
        copy_lazy_bits(made, copied)
        registry.forget(id(made))  # it was seen without the lazy bits
    return made


def rebuild_on(storage: UntypedStorage, like: Tensor, offset: Any = 0) -> Tensor:
    """Return a tensor on a storage, made as torch unpickles one."""
    with torch.no_grad():
        made = torch.empty((0,), dtype=like.dtype, device=storage.device)
        made.set_(storage, offset, like.shape, like.stride())
    return made.requires_grad_(like.requires_grad)
