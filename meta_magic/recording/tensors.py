"""Number tensors and storages, and name their geometry, without holding any of them.

On the meta device every address is 0 and ``id()`` repeats as soon as a tensor is
freed. So a storage is told apart by a weak reference that says when it dies, and a
tensor by its ``id()`` only while storage and geometry agree. Tensors themselves are
never weakly referenced: ``torch.utils.swap_tensors`` would then refuse them.
"""

import weakref
from array import array
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import torch
from torch import Tensor, UntypedStorage
from torch.nn import Parameter

from meta_magic.recording.torch_private import DisableTorchFunction
from meta_magic.trace.signature import Geometry

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["GeometryTable", "LiveGeometry", "Seen", "StorageRef", "TensorRegistry"]

QUANTIZED: Final = frozenset(
    {torch.qint8, torch.quint8, torch.qint32, torch.quint4x2, torch.quint2x4}
)
COMPLEX: Final = frozenset({torch.complex32, torch.complex64, torch.complex128})


class StorageRef(weakref.ref[UntypedStorage]):
    """Weak reference to a storage that carries its number.

    Attributes:
        number: Number given to the storage, in order of first sight.
        address: Address of torch's storage object; unique while it lives.
    """

    __slots__ = ("address", "number")
    number: int
    address: int


class LiveGeometry:
    """A geometry while recording: one object each, so that identity is its hash.

    Attributes:
        record: The geometry itself.
        is_meta: Whether it lies on the meta device.
        is_servable: Whether a tensor with it can be made by ``empty_strided``.
        as_strided: What ``as_strided`` takes to make a view with it.
    """

    __slots__ = (
        "as_strided",
        "dtype",
        "is_meta",
        "is_servable",
        "offset",
        "record",
        "shape",
        "stride",
    )

    def __init__(self, record: Geometry) -> None:
        self.record = record
        self.shape = record.shape
        self.stride: Any = record.stride  # None where nothing is made with it
        self.offset = record.storage_offset
        self.as_strided: Any = (record.shape, record.stride, record.storage_offset)
        # Complex tensors may be conjugated lazily: never recognized at a glance.
        self.dtype = None if record.dtype in COMPLEX else record.dtype
        self.is_meta = record.device.type == "meta"
        self.is_servable = (
            self.is_meta
            and record.layout is torch.strided
            and not (record.is_conj or record.is_neg or record.dtype in QUANTIZED)
        )


class GeometryTable:
    """All geometries met so far, one :class:`LiveGeometry` for each.

    Attributes:
        has_negatives: Whether a lazily negated tensor was ever met.
    """

    def __init__(self) -> None:
        self.has_negatives = False
        self._geometry_by_key: dict[tuple[object, ...], LiveGeometry] = {}

    def of(self, tensor: Tensor) -> LiveGeometry:
        """Return the geometry of ``tensor``."""
        kind = type(tensor)
        if kind is Tensor or kind is Parameter:
            return self._of(tensor)
        # A subclass may refuse to say: an uninitialized parameter has no ``shape``.
        with DisableTorchFunction():
            return self._of(tensor)

    def _of(self, tensor: Tensor) -> LiveGeometry:
        is_conj, is_neg = tensor.is_conj(), tensor.is_neg()
        self.has_negatives |= is_neg
        try:
            stride, offset = tensor.stride(), int(tensor.storage_offset())
        except (RuntimeError, NotImplementedError):  # sparse and nested layouts
            stride, offset = None, None
        if tensor.layout is torch.sparse_coo:  # says strides of 0
            stride, offset = None, None
        key = (
            *(size_of(tensor), stride, offset, tensor.dtype),
            *(tensor.device, tensor.layout, is_conj, is_neg),
        )
        geometry = self._geometry_by_key.get(key)
        if geometry is None:
            record = Geometry(
                shape=key[0],
                stride=stride,
                storage_offset=offset,
                dtype=tensor.dtype,
                device=tensor.device,
                layout=tensor.layout,
                is_conj=is_conj,
                is_neg=is_neg,
            )
            geometry = self._geometry_by_key[key] = LiveGeometry(record)
        return geometry


Seen: TypeAlias = tuple[int, StorageRef | None, LiveGeometry]
"""A tensor as last seen: its number, its storage (None: it has none), its geometry."""


class TensorRegistry:
    """The numbers of the tensors and storages that one recording meets.

    Attributes:
        storage_by_tensor: For each tensor number, the number of its storage.
        deaths: Pairs (operator calls recorded so far, storage), one per freed storage.
        nbytes_by_storage: Bytes of the storages that are not just as large as needed
            by the tensor through which they were first met.
        clock: One number, the operator calls recorded so far.
        n_storages: Storages met so far.
        on_new_storage: Called with the first tensor met on each storage that no served
            operator made, and the number of the storage.
    """

    def __init__(self, geometries: GeometryTable) -> None:
        self.storage_by_tensor = array("I")
        self.deaths = array("I")
        self.nbytes_by_storage: dict[int, int] = {}
        self.clock = [0]
        self.n_storages = 0
        self.on_new_storage: Callable[[Tensor, int], None] | None = None
        self._geometries = geometries
        self._storage_by_address: dict[int, StorageRef] = {}
        self._seen_by_id: dict[int, Seen] = {}
        # A callback written in Python would swallow an interrupt that lands in it.
        self._dead: list[StorageRef] = []
        self._on_death = self._dead.append

    def note_deaths(self) -> None:
        """Note the storages freed since the last time; to be called before reading.

        Their addresses may have been given to others meanwhile.
        """
        while self._dead:
            ref = self._dead.pop(0)
            if self._storage_by_address.get(ref.address) is ref:
                del self._storage_by_address[ref.address]
            self.deaths.extend((self.clock[0], ref.number))

    def read(self, tensor: Tensor) -> Seen:
        """Return what is known of ``tensor``; number it when it is new."""
        seen = self._seen_by_id.get(id(tensor))
        try:
            if seen is not None and self._is_as_seen(tensor, seen):
                return seen
        except (RuntimeError, ValueError):  # an uninitialized parameter
            pass
        return self._read_anew(tensor, seen)

    def _is_as_seen(self, tensor: Tensor, seen: Seen) -> bool:
        """Whether a tensor at a known address is the one that was seen there."""
        geometry, storage = seen[2], seen[1]
        return (
            tensor.dtype is geometry.dtype
            and tensor.shape == geometry.shape
            and storage is not None
            and self._storage_by_address.get(tensor.untyped_storage()._cdata) is storage
            and tensor.stride() == geometry.stride
            and tensor.storage_offset() == geometry.offset
            and not self._geometries.has_negatives
        )

    def find(self, tensor: Tensor) -> Seen | None:
        """Return what is known of ``tensor`` if it was seen before as it is now."""
        seen = self._seen_by_id.get(id(tensor))
        return seen if seen is not None and self._is_as_seen(tensor, seen) else None

    def find_storage(self, tensor: Tensor) -> int | None:
        """Return the number of a tensor's storage if that was met."""
        try:
            address = Tensor.untyped_storage(tensor)._cdata
        except (RuntimeError, NotImplementedError, ValueError):  # it has none
            return None
        ref = self._storage_by_address.get(address)
        return None if ref is None else ref.number

    def geometry_of(self, tensor: Tensor) -> LiveGeometry:
        """Return the geometry of ``tensor`` without numbering it."""
        return self._geometries.of(tensor)

    def _read_anew(self, tensor: Tensor, seen: Seen | None) -> Seen:
        geometry, storage = self._geometries.of(tensor), self.storage_of(tensor)
        if seen is not None and seen[1] is storage and seen[2] is geometry:
            return seen
        return self._add(tensor, storage, geometry)

    def add_seen(self, tensor: Tensor, geometry: LiveGeometry) -> int:
        """Number a tensor that has none yet, and whose geometry is known."""
        return self._add(tensor, self.storage_of(tensor), geometry)[0]

    def add_fresh(self, tensor: Tensor, geometry: LiveGeometry) -> int:
        """Number a tensor just made on a new storage of its own."""
        ref = self._add_storage(tensor.untyped_storage())
        storages = self.storage_by_tensor
        number = len(storages)
        storages.append(ref.number)
        self._seen_by_id[id(tensor)] = (number, ref, geometry)
        return number

    def add_served(
        self, tensor: Tensor, number: int, storage: int, geometry: LiveGeometry
    ) -> None:
        """Note a tensor that was given its numbers before it was made."""
        self._seen_by_id[id(tensor)] = (
            number, self._refer_to(tensor.untyped_storage(), storage), geometry
        )  # fmt: skip

    def add_known(self, tensor: Tensor, number: int, geometry: LiveGeometry) -> None:
        """Note a tensor on a storage that was met before, whose number is known."""
        self._seen_by_id[id(tensor)] = (number, self.storage_of(tensor), geometry)

    def add_view(self, tensor: Tensor, base: Seen, geometry: LiveGeometry) -> int:
        """Number a tensor just made on the storage of ``base``."""
        number = len(self.storage_by_tensor)
        self.storage_by_tensor.append(self.storage_by_tensor[base[0]])
        self._seen_by_id[id(tensor)] = (number, base[1], geometry)
        return number

    def add_output(self, tensor: Tensor) -> Seen:
        """Number a tensor that an operator returned, whatever its storage."""
        return self._add(tensor, self.storage_of(tensor), self._geometries.of(tensor))

    def renew(self, tensor: Tensor, seen: Seen) -> Seen:
        """Return what is known of an argument after an operator may have written it."""
        geometry, storage = self._geometries.of(tensor), self.storage_of(tensor)
        if storage is not seen[1]:
            return self._add(tensor, storage, geometry)
        renewed = (seen[0], storage, geometry)
        self._seen_by_id[id(tensor)] = renewed
        return renewed

    def storage_of(self, tensor: Tensor) -> StorageRef | None:
        """Return the storage of ``tensor``, numbered when new; None if it has none."""
        try:
            storage = Tensor.untyped_storage(tensor)
        except (RuntimeError, NotImplementedError):
            return None
        ref = self._storage_by_address.get(storage._cdata)
        if ref is None:
            ref = self._add_storage(storage)
            if storage.nbytes() != span_nbytes(tensor):
                self.nbytes_by_storage[ref.number] = storage.nbytes()
            if self.on_new_storage is not None:
                self.on_new_storage(tensor, ref.number)
        return ref

    def living(self) -> list[StorageRef]:
        """Return a reference to each storage that lives."""
        self.note_deaths()
        return list(self._storage_by_address.values())

    def close(self) -> None:
        """Let go of all storages, and hear of no more deaths."""
        self.note_deaths()
        self.on_new_storage = None
        self._storage_by_address.clear()
        self._seen_by_id.clear()

    def _add_storage(self, storage: UntypedStorage) -> StorageRef:
        number = self.n_storages
        self.n_storages = number + 1
        return self._refer_to(storage, number)

    def _refer_to(self, storage: UntypedStorage, number: int) -> StorageRef:
        ref = StorageRef(storage, self._on_death)
        ref.number = number
        ref.address = address = storage._cdata
        self._storage_by_address[address] = ref
        return ref

    def _add(
        self, tensor: Tensor, storage: StorageRef | None, geometry: LiveGeometry
    ) -> Seen:
        if storage is None:  # sparse and nested tensors get a storage number each
            number_of_storage = self.n_storages
            self.n_storages += 1
        else:
            number_of_storage = storage.number
        seen = (len(self.storage_by_tensor), storage, geometry)
        self.storage_by_tensor.append(number_of_storage)
        self._seen_by_id[id(tensor)] = seen
        return seen


def span_nbytes(tensor: Tensor) -> int:
    """Return the bytes from a storage's start to the last element of ``tensor``."""
    if tensor.is_contiguous() or tensor.numel() == 0:
        return (int(tensor.storage_offset()) + tensor.numel()) * tensor.itemsize
    last = sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))
    return int(tensor.storage_offset() + last + 1) * tensor.itemsize


def size_of(tensor: Tensor) -> tuple[int, ...]:
    """Return the sizes of a tensor; none of a nested one, whose rows differ."""
    try:
        return tuple(Tensor.size(tensor))
    except RuntimeError:
        return ()
