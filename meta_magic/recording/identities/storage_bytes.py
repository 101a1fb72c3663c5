"""The bytes of a storage as a tensor, and their checksum."""

import ctypes
import zlib
from typing import Final

import torch
from torch import Tensor, UntypedStorage

from meta_magic.torch_private.modes import DisableTorchDispatch, DisableTorchFunction

__all__ = ["MAX_COPIED_NBYTES", "as_bytes", "sum_bytes", "sum_small"]

MAX_COPIED_NBYTES: Final = 16 * 2**20
"""Bytes up to which the content of a real storage is copied, and summed each time."""


def sum_small(storage: UntypedStorage) -> int | None:
    """Return the checksum of a real storage; None if it is large."""
    if storage.nbytes() > MAX_COPIED_NBYTES:
        return None
    if storage.device.type == "cpu":
        return sum_storage(storage)
    with DisableTorchFunction(), DisableTorchDispatch():
        return sum_bytes(as_bytes(storage))


def as_bytes(storage: UntypedStorage) -> Tensor:
    """Return a tensor of the bytes of a storage, which it shares."""
    empty = torch.empty(0, dtype=torch.uint8, device=storage.device)
    return empty.set_(storage)


def sum_bytes(tensor: Tensor) -> int:
    """Return a checksum of a tensor of bytes.

    Read from memory: torch resizes no storage that numpy has seen.
    """
    return sum_storage(tensor.cpu().untyped_storage())


def sum_storage(storage: UntypedStorage) -> int:
    """Return a checksum of a storage on the CPU; zero if it has no bytes."""
    if not storage.nbytes() or not has_memory(storage):
        return 0
    buffer = ctypes.c_char * storage.nbytes()
    return zlib.crc32(buffer.from_address(storage.data_ptr()))


def has_memory(storage: UntypedStorage) -> bool:
    """Whether a real storage has memory; the zeros of forward mode have none."""
    try:
        storage.data_ptr()
    except RuntimeError:
        return False
    return True
