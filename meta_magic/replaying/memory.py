"""The real storages of a replay, by their number in the program.

Read :class:`Memory` first; :func:`make_view` makes a tensor of recorded geometry on a
storage.
"""

from collections.abc import Iterable
from typing import Final

import torch
from torch import Tensor, UntypedStorage

from meta_magic.errors import ReplayError
from meta_magic.recording.identities.geometries import GeometryTable
from meta_magic.recording.identities.storages import as_bytes, sum_bytes
from meta_magic.replaying.program_calls import ProgramCalls
from meta_magic.torch_private.tensor_internals import negate_lazily, parts_of
from meta_magic.trace.program_facts import Constant
from meta_magic.trace.signature import Geometry


class Memory:
    """The real storages that are live during a replay."""

    def __init__(self, recorded: ProgramCalls, device: torch.device) -> None:
        self.device = device
        self._recorded = recorded
        self._storages: dict[int, UntypedStorage] = {}
        self._tensors: dict[int, Tensor] = {}  # sparse ones, which have no storage
        self._last: dict[int, tuple[Geometry, Tensor]] = {}

    def __contains__(self, storage: int) -> bool:
        return storage in self._storages or storage in self._tensors

    def tensor(self, storage: int, geometry: Geometry) -> Tensor:
        """Return a tensor of the recorded geometry; the next call may reuse it."""
        last = self._last.get(storage)
        if last is not None and last[0] is geometry:
            return last[1]
        if storage in self._tensors:
            return view_sparse(self._tensors[storage], geometry)
        real = self._storages[storage]
        if geometry.device.type == "meta" and real.device != self.device:
            # A recorded constant is on the CPU; in the cell it was on the device.
            real = self._storages[storage] = (
                as_bytes(real).to(self.device).untyped_storage()
            )
        tensor = make_view(real, geometry)
        self._last[storage] = geometry, tensor
        return tensor

    def note_tensor(self, storage: int, geometry: Geometry, tensor: Tensor) -> None:
        """Remember a tensor on a storage, for the next call that needs it."""
        self._last[storage] = geometry, tensor

    def forget_tensors(self, storages: Iterable[int]) -> None:
        """Forget remembered tensors, whose shape or strides a call may have changed."""
        for storage in storages:
            self._last.pop(storage, None)

    @property
    def nbytes(self) -> int:
        """Bytes of all storages."""
        tensors = sum(tensor.nbytes for tensor in self._tensors.values())
        return tensors + sum(real.nbytes() for real in self._storages.values())

    def storages(self) -> set[int]:
        """Return the numbers of all storages."""
        return {*self._storages, *self._tensors}

    def add(self, storage: int, real: UntypedStorage | Tensor) -> None:
        """Add a storage, grown to its recorded size; or a tensor without one.

        Reading a storage without memory would crash the process.
        """
        if isinstance(real, Tensor):
            self._tensors[storage] = real
            return
        if not has_memory(real):
            raise ReplayError("a tensor subclass has no memory of its own", storage)
        nbytes = self._recorded.nbytes_by_storage[storage]
        if real.nbytes() < nbytes:
            grown = allocate(nbytes, real.device)
            as_bytes(grown)[: real.nbytes()].copy_(as_bytes(real))
            real = grown
        self._storages[storage] = real
        self._last.pop(storage, None)

    def find(self, storage: int) -> UntypedStorage | None:
        """Return a storage, or None."""
        return self._storages.get(storage)

    def take(self, storage: int) -> UntypedStorage | Tensor:
        """Remove a storage and return it."""
        self._last.pop(storage, None)
        found = self._storages.pop(storage, None)
        return self._tensors.pop(storage) if found is None else found

    def free(self, storages: Iterable[int]) -> None:
        """Remove storages."""
        for storage in storages:
            self._storages.pop(storage, None)
            self._tensors.pop(storage, None)
            self._last.pop(storage, None)

    def allocate(self, storage: int, geometry: Geometry) -> None:
        """Add a new, uninitialized storage."""
        device = self.device if geometry.device.type == "meta" else geometry.device
        nbytes = self._recorded.nbytes_by_storage[storage]
        self._storages[storage] = allocate(nbytes, device)
        self._last.pop(storage, None)

    def load(self, constant: Constant) -> None:
        """Add a storage with its recorded content."""
        if constant.sparse is not None:
            self.add(constant.storage, constant.sparse.clone().to(self.device))
        elif constant.data is not None:
            self.add(constant.storage, load_bytes(constant.data))
        else:
            self._load_shared(constant)

    def _load_shared(self, constant: Constant) -> None:
        """Add a copy of a tensor of the user, if it did not change since."""
        tensor, name = constant.tensor, constant.name
        if tensor is None or sum_bytes(tensor) != constant.checksum:
            raise ReplayError(
                f"{'a real tensor' if name is None else f'your real `{name}`'} that "
                "the cell read was changed since, and at "
                f"{0 if tensor is None else tensor.numel():,} bytes was too large to "
                "be copied: run the cell again",
                constant.storage,
            )
        self.add(constant.storage, tensor.clone().untyped_storage())


def allocate(nbytes: int, device: torch.device) -> UntypedStorage:
    """Return a new, uninitialized storage."""
    return torch.empty(nbytes, dtype=torch.uint8, device=device).untyped_storage()


frombuffer = torch.frombuffer  # which a recording replaces


def load_bytes(data: bytes) -> UntypedStorage:
    """Return a new storage with some bytes; torch has none for no bytes."""
    copied = bytearray(data) or bytearray(1)
    return frombuffer(copied, dtype=torch.uint8).untyped_storage()


def has_memory(storage: UntypedStorage) -> bool:
    """Whether a storage has memory; that of a tensor subclass may have none."""
    try:
        return bool(storage.data_ptr()) or not storage.nbytes()
    except RuntimeError:
        return False


def make_view(storage: UntypedStorage, geometry: Geometry) -> Tensor:
    """Return a tensor on a storage."""
    shape, stride, offset = geometry.shape, geometry.stride, geometry.storage_offset
    if stride is None or offset is None:
        raise ReplayError(f"a {geometry.layout} tensor has no storage of its own")
    nbytes, cause = storage.nbytes(), None
    view = torch.empty(0, dtype=geometry.dtype, device=storage.device)
    try:
        view.set_(storage, offset, shape, stride)
    except RuntimeError as error:
        cause = error
    if cause is not None or storage.nbytes() != nbytes:  # set_ grows a short storage
        raise ReplayError(
            f"torch makes no {geometry.dtype} tensor of shape {shape} on a storage of "
            f"{nbytes:,} bytes"
        ) from cause
    if geometry.is_conj:
        view = view.conj()
    view = negate_lazily(view) if geometry.is_neg else view
    # To autograd it is no view then: its history can be changed in place.
    return view.detach() if geometry.is_conj or geometry.is_neg else view


def view_sparse(sparse: Tensor, geometry: Geometry) -> Tensor:
    """Return a sparse tensor, or a view of its values."""
    if geometry.stride is None:
        return sparse
    values = parts_of(sparse)[-1]
    if (values.shape, values.stride()) == (geometry.shape, geometry.stride):
        return values
    if not values.is_contiguous() or values.storage_offset():
        raise ReplayError("the values of a sparse tensor are laid out otherwise here")
    return make_view(values.untyped_storage(), geometry)


GEOMETRIES: Final = GeometryTable()


def read_geometry(tensor: Tensor) -> Geometry:
    """Return the geometry of a tensor, without its planned device."""
    return GEOMETRIES.of(tensor, None).record
