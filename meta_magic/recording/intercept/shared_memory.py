"""Keep real arrays equal to the meta tensors that share their memory.

After ``a = x.numpy()`` both have one memory. When an operator writes the tensor, the
new values are written to the array. A write to the array becomes a recorded ``copy_``
to the tensor, before the next operator. Read :class:`SharedArray` first.
"""

import ctypes
import sys
import weakref
import zlib
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor, UntypedStorage

from meta_magic.errors import MissingValueError
from meta_magic.recording.identities.call_sites import Running
from meta_magic.recording.identities.storages import (
    MAX_COPIED_NBYTES,
    make_up_address,
    span_nbytes,
    string_at,
)
from meta_magic.recording.identities.tensors import tensors_in
from meta_magic.recording.intercept.value_checks import ValueSource
from meta_magic.recording.rows.writers import Writers
from meta_magic.recording.signatures.entries import Args, Kwargs
from meta_magic.torch_private.modes import DisableTorchDispatch, DisableTorchFunction
from meta_magic.torch_private.snapshot import RealTorch
from meta_magic.torch_private.tensor_internals import (
    address_of_storage,
    count_owners,
    negate_lazily,
)
from meta_magic.trace.signature import META

frombuffer = torch.frombuffer  # which a recording replaces

MAX_WATCHED_NBYTES: Final = 2**16
"""Bytes of an array up to which it is checked before each operator."""

N_NEWEST: Final = 64  # how many arrays are searched for one with the same memory

OWN_REFERENCES: Final = 2
"""References to an array that ``SharedArray`` itself holds: attribute and argument."""


class SharedArray:
    """Memory of a real array, and the tensor on meta that shares it.

    Attributes:
        content: The bytes of a small array, or the checksum of a larger one, to notice
            writes; None for an array above ``MAX_COPIED_NBYTES``.
        is_watched: Whether it is checked before each operator, because it is small.
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
        return sys.getrefcount(self._owner) <= OWN_REFERENCES

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


ON_CPU: Final = (None, torch.device("cpu"))
COPY: Final = torch.ops.aten.copy_.default
MIN_ROOM: Final = 32  # new arrays after which dead ones are searched

MAX_HELD: Final = 2**26  # bytes of new arrays after which dead ones are searched

TOO_LARGE: Final = (
    "an array that shares the memory of a tensor is not updated from here on, because "
    "its values would take too much to compute (see --value-nbytes, --value-seconds)"
)
LATE_CHANGE: Final = (
    "an array of {:,} bytes that shares the memory of a tensor was changed: a change "
    "of so large an array reaches the tensor at the end of the cell"
)

SHARED_WITH_PROCESSES: Final = "shared with processes"
"""Attribute of a storage on meta that the code shared with other processes."""

carried_arrays: list[SharedArray] = []  # arrays that outlive the cells that made them


class SharedMemory:
    """Context manager that keeps arrays equal to tensors within the block."""

    modes: Sequence[Any]

    def __init__(self, write: Writers, values: ValueSource) -> None:
        self._write, self._registry = write, write.registry
        self._values = values
        self._arrays = SharedArrays()
        self._room, self._held = MIN_ROOM, 0
        self._is_looking = self._is_writing = False

    def __enter__(self) -> None:
        if carried_arrays:
            self._start_watching()
            for array in carried_arrays:
                if array.hold_again() and array.storage() is not None:
                    self._arrays.add(array)
            carried_arrays.clear()
            for array in [*self._arrays]:
                if array.read() != array.content:
                    self._write_tensor(array)

    def __exit__(self, *_: object) -> None:
        self._update_tensors(self._arrays)
        for array in self._arrays:
            array.hold_weakly()
        carried_arrays.extend(self._arrays)
        self._arrays = SharedArrays()

    # Sharing

    def give(self, func: Any, args: Args, kwargs: Kwargs) -> Any:
        """Return the array that a function makes of a tensor on meta."""
        tensor, *rest = args
        self.update_read([tensor])
        again = self._find_again(tensor)
        if again is not None:
            return func(again, *rest, **kwargs)
        try:
            real = tensor.cpu()
        except MissingValueError as error:
            # Code fills a buffer: file.readinto(x.numpy()).
            if self._registry.find_storage(tensor) not in error.allocated:
                raise
            with DisableTorchFunction(), DisableTorchDispatch():
                real = torch.zeros_like(tensor, device="cpu")
        with DisableTorchFunction(), DisableTorchDispatch():
            if tensor.is_conj():  # numpy refuses it, as on the CPU
                real = real.conj().resolve_conj().conj()
            if tensor.is_neg():
                real = negate_lazily(-real)
        array = func(real, *rest, **kwargs)
        with DisableTorchFunction(), DisableTorchDispatch():
            self._share(real.untyped_storage(), real, tensor)
        return array

    def adopt(self, array: np.ndarray[Any, Any], real: Tensor, made: Tensor) -> Tensor:
        """Return the meta tensor for a tensor on the memory of an array."""
        is_here = made.is_meta and self._registry.placement_of(made) in ON_CPU
        if not (is_here and array.flags.writeable and real.dtype == made.dtype):
            return made
        planned = self.find_planned(real)
        with DisableTorchFunction(), DisableTorchDispatch():
            if planned is not None:
                return planned.requires_grad_(made.requires_grad)
            while isinstance(array.base, np.ndarray):  # the base outlives its views
                array = array.base
            self._share(array, real, made)
        return made

    def find_planned(self, real: Tensor) -> Tensor | None:
        """Return the meta tensor for a tensor on the memory of a known array."""
        with DisableTorchFunction(), DisableTorchDispatch():
            known = self._arrays.newest()  # both follow an older array
            found = (shared.find_planned(real) for shared in known)
            planned = next((made for made in found if made is not None), None)
            if planned is not None:
                self._registry.note_new_alias(planned)
            return planned

    def share_again(self, tensor: Tensor) -> Tensor:
        """Return another tensor on the memory of one on meta, as DLPack gives it."""
        with DisableTorchFunction(), DisableTorchDispatch():
            try:
                tensor.__dlpack__()
            except BufferError as error:
                if "meta" not in str(error):
                    raise
            made = tensor.data  # it counts its own writes
            self._registry.note_new_alias(made)
            return made

    def separate(self, tensor: Tensor) -> None:
        """Separate a tensor from arrays on its memory, as ``share_memory_`` does."""
        with DisableTorchFunction():
            attributes = vars(tensor.untyped_storage())
        if SHARED_WITH_PROCESSES in attributes:
            return  # and nothing is moved again
        arrays = self._arrays.sharing([tensor])
        self._update_tensors(arrays)
        for array in arrays:
            self._arrays.remove(array)

    def find_address(self, storage: UntypedStorage) -> int:
        """Return the address of a storage on meta: an array's, or a made-up one."""
        address = self._arrays.find_address(storage) if self._arrays else None
        return make_up_address(storage) if address is None else address

    def find_address_of(self, tensor: Tensor) -> int:
        """Return the address of a tensor on meta: 0 if it has no elements."""
        with DisableTorchFunction():
            if not tensor.numel():
                return 0
            start = self.find_address(tensor.untyped_storage())
            return start + int(tensor.storage_offset()) * tensor.itemsize

    def _share(self, owner: object, real: Tensor, tensor: Tensor) -> None:
        if tensor.is_meta and not real.is_meta and real.numel():
            self._start_watching()
            array = SharedArray(owner, real, tensor)
            self._arrays.add(array)
            self._held += array.nbytes
            if len(self._arrays) > self._room or self._held > MAX_HELD:
                self._update_tensors([other for other in self._arrays if other.is_gone])
                self._room, self._held = 2 * len(self._arrays) + MIN_ROOM, 0

    def _find_again(self, tensor: Tensor) -> Tensor | None:
        """Return a real tensor on the memory that was shared for the same tensor."""
        if tensor.requires_grad:
            return None
        with DisableTorchFunction(), DisableTorchDispatch():
            sharing = self._arrays.sharing([tensor])
            found = (array.find_again(tensor) for array in sharing)
            return next((real for real in found if real is not None), None)

    def _start_watching(self) -> None:
        if not self._is_looking:
            self._is_looking = True
            self._values.prepare = self.update_read
            for mode in self.modes:
                mode.watched = self

    # Updates

    def update_read(self, *values: object) -> Sequence[Tensor]:
        """Copy writes to small arrays to tensors that are read next; return these."""
        tensors = tensors_in(*values)
        if self._arrays and not self._is_writing:
            for array in self._arrays.sharing(tensors):
                if array.is_watched and array.read() != array.content:
                    self._write_tensor(array)
        return tensors

    def concerns(self, tensors: Iterable[Tensor]) -> bool:
        """Whether an array shares the memory of one of some tensors."""
        return bool(self._arrays) and bool(self._arrays.sharing(tensors))

    def update_arrays(
        self, tensors: Iterable[Tensor], written: SharedArray | None = None
    ) -> None:
        """Copy to arrays what was written to tensors, but to ``written`` nothing."""
        if self._arrays and not self._is_writing:
            self._is_writing = True
            try:
                for array in self._arrays.sharing(tensors):
                    if array is not written:
                        self._write_array(array)
            finally:
                self._is_writing = False

    def _update_tensors(self, arrays: Iterable[SharedArray]) -> None:
        """Copy writes to arrays to their tensors; remove arrays that are gone."""
        for array in [*arrays]:
            if array.storage() is not None and array.read() != array.content:
                if not array.is_watched:
                    self._write.note("array", LATE_CHANGE.format(array.nbytes))
                self._write_tensor(array)
            if array.is_gone:
                self._arrays.remove(array)

    def _write_tensor(self, array: SharedArray) -> None:
        registry, sites = self._registry, self._write.sites
        dispatch, before = self.modes[1], sites.running
        self._is_writing, array.content = True, array.read()
        try:
            with (
                DisableTorchFunction(),
                DisableTorchDispatch(),
                torch.inference_mode(mode=False),
                torch.no_grad(),
            ):
                real, tensor = array.as_real().clone(), array.as_planned()
                sizes = real.shape, real.stride()
                values = torch.empty_strided(*sizes, dtype=real.dtype, device=META)
                registry.note_new_alias(tensor)
                ref = registry.storage_of(values)
                if ref is not None:
                    self._write.constants.keep(ref, real.untyped_storage())
                if before is not None:
                    sites.running = Running(Tensor.copy_, before.frame)
                dispatch.__torch_dispatch__(COPY, (), (tensor, values))
                registry.forget(id(tensor), None)
        finally:
            self._is_writing, sites.running = False, before
        if len(self._arrays) > 1:
            self.update_arrays([tensor], written=array)

    def _write_array(self, array: SharedArray) -> None:
        with DisableTorchFunction(), DisableTorchDispatch():
            tensor, registry = array.as_planned(), self._registry
            registry.note_deaths()
            # The address may belong to another tensor, now or later.
            registry.forget(id(tensor), None)
            seen = registry.read(tensor)
            registry.forget(id(tensor), None)
        real = self._values.peek(tensor, seen)
        if real is None:
            self._arrays.remove(array)
            self._write.note("array", TOO_LARGE)
            return
        with RealTorch():
            array.as_real().copy_(real)
        array.content = array.read()
