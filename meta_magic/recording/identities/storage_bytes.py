"""The bytes of a storage as a tensor, and their checksum."""

import ctypes
import zlib
from typing import Final

import torch
from torch import Tensor, UntypedStorage

from meta_magic.torch_private.modes import DisableTorchDispatch, DisableTorchFunction

__all__ = [
    "MAX_COPIED_NBYTES",
    "address_of_memory",
    "as_bytes",
    "string_at",
    "sum_bytes",
    "sum_small",
]

string_at = ctypes.string_at  # which a recording replaces, as the next
address_of_memory = UntypedStorage.data_ptr

MAX_COPIED_NBYTES: Final = 16 * 2**20
"""Bytes up to which the content of a real storage is copied, and summed each time."""

MAX_SMALL_NBYTES: Final = 64
"""Bytes of which a copy is made sooner than a type of ``ctypes``."""

CPU: Final = torch.device("cpu")


def sum_small(storage: UntypedStorage) -> int | None:
    """Return the checksum of a real storage; None if it is large."""
    nbytes = storage.nbytes()
    if nbytes > MAX_COPIED_NBYTES:
        return None
    if storage.device == CPU:
        return sum_storage(storage, nbytes)
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
    storage = tensor.cpu().untyped_storage()
    return sum_storage(storage, storage.nbytes())


def sum_storage(storage: UntypedStorage, nbytes: int) -> int:
    """Return a checksum of a storage on the CPU; zero if it has no bytes."""
    address = find_memory(storage) if nbytes else None
    if address is None:
        return 0
    if nbytes <= MAX_SMALL_NBYTES:
        return zlib.crc32(string_at(address, nbytes))
    buffer = ctypes.c_char * nbytes
    return zlib.crc32(buffer.from_address(address))


def find_memory(storage: UntypedStorage) -> int | None:
    """Return where a real storage lies; the zeros of forward mode have no memory."""
    try:
        return address_of_memory(storage)
    except RuntimeError:
        return None
