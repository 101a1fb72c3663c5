"""Let tensors on meta share the memory of numpy arrays, as on the CPU.

After ``a = x.numpy()`` and ``a[0] = 1`` the tensor ``x`` has changed. Read
:class:`SharedArray` first.
"""

import ctypes
import sys
import weakref
import zlib
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any, Final

import torch
from torch import Tensor, UntypedStorage

from meta_magic.recording.identities.geometries import span_nbytes
from meta_magic.recording.identities.storages import MAX_COPIED_NBYTES, string_at
from meta_magic.torch_private.modes import DisableTorchFunction
from meta_magic.torch_private.tensor_internals import (
    address_of_storage,
    count_owners,
)

frombuffer = torch.frombuffer  # which a recording replaces

META: Final = torch.device("meta")
MAX_WATCHED_NBYTES: Final = 2**16
"""Bytes of an array up to which it is checked before each operator."""

N_NEWEST: Final = 64
"""How many arrays are searched for one with the same memory."""

OWN: Final = 2
"""References to an array that ``SharedArray`` itself holds: attribute and argument."""


class SharedArray:
    """Memory of a real array, and the tensor on meta that shares it.

    Args:
        owner: Has the memory: an array, or a storage of torch.
        tensor: The one on meta.

    Attributes:
        storage: Returns the storage on meta, while it is live.
        address: Address of the memory.
        content: Shows whether the memory was written since: its bytes, their checksum,
            or None if a constant has the checksum.
        is_watched: Whether it is small.
    """

    def __init__(self, owner: object, real: Tensor, tensor: Tensor) -> None:
        sizes = zip(real.shape, tensor.stride(), strict=True)
        self._shape = [n if step else 1 for n, step in sizes]  # each element once
        self._owner: Any = owner
        self._ref = weakref.ref(self._owner)
        self.storage = weakref.ref(tensor.untyped_storage())
        self._geometry = tensor.dtype, tensor.storage_offset(), tensor.stride()
        self.address, self._stride = real.data_ptr(), real.stride()
        self.nbytes = int(span_nbytes(real) - real.storage_offset() * real.itemsize)
        self.is_watched = self.nbytes <= MAX_WATCHED_NBYTES
        is_storage = isinstance(owner, UntypedStorage)
        self._is_summed = is_storage or self.nbytes <= MAX_COPIED_NBYTES
        self.content = self.read()

    @property
    def is_gone(self) -> bool:
        """Whether the memory, or the tensor, is referenced only here."""
        if self.storage() is None or self._owner is None:
            return True
        if isinstance(self._owner, UntypedStorage):
            return not count_owners(address_of_storage(self._owner))
        return sys.getrefcount(self._owner) <= OWN

    def is_all_of(self, storage: UntypedStorage) -> bool:
        """Whether the memory has one byte for each byte of a storage on meta."""
        is_here = self.storage() is storage and not self.is_gone
        _, offset, stride = self._geometry
        has_layout = not offset and stride == self._stride
        return is_here and has_layout and self.nbytes == storage.nbytes()

    def read(self) -> bytes | int | None:
        """Return the content by which a write to the memory is detected."""
        if self.is_watched:
            return string_at(self.address, self.nbytes)
        if not self._is_summed:
            return None
        return zlib.crc32((ctypes.c_char * self.nbytes).from_address(self.address))

    def hold_weakly(self) -> None:
        """Hold large memory only weakly while no block runs."""
        if not self.is_watched:
            self._owner = None

    def hold_again(self) -> bool:
        """Hold the memory again; return whether it is still alive."""
        self._owner = self._ref()
        return self._owner is not None

    def as_real(self) -> Tensor:
        """Return a tensor on the memory, without keeping the memory alive."""
        buffer = (ctypes.c_char * self.nbytes).from_address(self.address)
        flat = frombuffer(buffer, dtype=self._geometry[0])
        return flat.as_strided(self._shape, self._stride)

    def as_planned(self) -> Tensor:
        """Return a tensor on meta that shares the memory."""
        dtype, offset, stride = self._geometry
        made = torch.empty(0, dtype=dtype, device=META)
        storage: Any = self.storage()
        return made.set_(storage, offset, self._shape, stride)

    def find_planned(self, real: Tensor) -> Tensor | None:
        """Return the tensor on meta for a real one, if that is on the memory."""
        away = real.data_ptr() - self.address
        if not 0 <= away < self.nbytes:
            return None
        dtype, offset, stride = self._geometry
        storage: Any = self.storage()
        if storage is None or real.dtype != dtype or self._stride != stride:
            return None
        made = torch.empty(0, dtype=dtype, device=META)
        offset += away // real.itemsize
        return made.set_(storage, offset, real.shape, real.stride()).data

    def find_again(self, tensor: Tensor) -> Tensor | None:
        """Return a real tensor that keeps the memory alive; None for another tensor."""
        owner = self._owner
        if tensor.untyped_storage() is not self.storage():
            return None
        found = tensor.dtype, tensor.storage_offset(), tensor.stride()
        is_same = found == self._geometry and list(tensor.shape) == self._shape
        if not is_same or not isinstance(owner, UntypedStorage):
            return None
        offset = (self.address - owner.data_ptr()) // tensor.itemsize
        made = torch.empty(0, dtype=tensor.dtype, device="cpu")
        return made.set_(owner, offset, tensor.shape, self._stride)


class SharedArrays:
    """Shared arrays, in order; found by the tensors that share their memory."""

    def __init__(self) -> None:
        self._by_address: dict[int, list[SharedArray]] = {}
        self._address_by_array: dict[SharedArray, int] = {}

    def __iter__(self) -> Iterator[SharedArray]:
        return iter(self._address_by_array)

    def __len__(self) -> int:
        return len(self._address_by_array)

    def newest(self) -> Iterator[SharedArray]:
        """Yield the arrays that were added last."""
        return islice(reversed(self._address_by_array), N_NEWEST)

    def add(self, array: SharedArray) -> None:
        """Add an array whose tensor is live."""
        storage: Any = array.storage()
        address = address_of_storage(storage)
        self._address_by_array[array] = address
        self._by_address.setdefault(address, []).append(array)

    def find_address(self, storage: UntypedStorage) -> int | None:
        """Return the address of the memory of a whole storage, if it has some."""
        for array in self._by_address.get(address_of_storage(storage), ()):
            if array.is_all_of(storage):
                return array.address
        return None

    def remove(self, array: SharedArray) -> None:
        """Remove an array, if it was not removed."""
        address = self._address_by_array.pop(array, None)
        if address is not None:
            here = self._by_address[address]
            here.remove(array)
            if not here:
                del self._by_address[address]

    def sharing(self, tensors: Iterable[Tensor]) -> list[SharedArray]:
        """Return the arrays that share memory with one of some tensors."""
        found: dict[SharedArray, None] = {}
        with DisableTorchFunction():
            for tensor in tensors:
                try:
                    storage = tensor.untyped_storage()
                except (RuntimeError, NotImplementedError):  # it has none
                    continue
                here = self._by_address.get(address_of_storage(storage), ())
                found.update((a, None) for a in here if a.storage() is storage)
        return [*found]
