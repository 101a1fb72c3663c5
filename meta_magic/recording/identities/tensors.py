"""Number tensors and storages without holding any of them.

On the meta device every address is 0 and ``id()`` repeats as soon as a tensor is
freed. So a storage is told apart by a weak reference that says when it dies, and a
tensor by its ``id()`` only while storage and geometry agree. Tensors themselves are
never weakly referenced: ``torch.utils.swap_tensors`` would then refuse them.
"""

import weakref
from array import array
from collections.abc import Callable
from typing import Any, TypeAlias

import torch
from torch import Tensor, UntypedStorage

from meta_magic.recording.identities.clock import Clock
from meta_magic.recording.identities.geometries import (
    GeometryTable,
    LiveGeometry,
    span_nbytes,
)
from meta_magic.torch_private.interrupts import unbroken
from meta_magic.torch_private.modes import DisableTorchFunction
from meta_magic.torch_private.tensor_internals import address_of_storage

__all__ = ["Seen", "StorageRef", "TensorRegistry"]


class StorageRef(weakref.ref[UntypedStorage]):
    """Weak reference to a storage that carries its number.

    Attributes:
        number: Number given to the storage, in order of first sight.
        address: Address of torch's storage object; unique while it lives. 0 where
            another reference has taken the place of this one.
        place: Device that the code names for it; None where it names none.
    """

    __slots__ = ("address", "number", "place")
    number: int
    address: int
    place: torch.device | None


Seen: TypeAlias = tuple[int, StorageRef | None, LiveGeometry]
"""A tensor as last seen: its number, its storage (None: it has none), its geometry."""


class TensorRegistry:
    """The numbers of the tensors and storages that one recording meets.

    Attributes:
        storage_by_tensor: For each tensor number, the number of its storage.
        deaths: Pairs (operator calls recorded so far, storage), one per freed storage.
        nbytes_by_storage: Bytes of the storages that are not just as large as needed
            by the tensor through which they were first met.
        n_storages: Storages met so far.
        freed: Storages that were freed and are not noted yet.
        has_aside: Whether the cell put any tensor on meta by name.
        forget: Takes the ``id()`` of a tensor that was just made, and None: it is new,
            whatever was there before.
        aliased: Storages on which a tensor was made that counts its own writes.

    Args:
        geometries: The geometries met, by this recording or by others.
        clock: Dates the deaths of storages.
        on_new_storage: Called with the first tensor met on each storage that no served
            operator made, the number of the storage, and that; returns its place.
        find_place: Returns where an earlier recording left a storage.
    """

    def __init__(
        self,
        geometries: GeometryTable,
        clock: Clock,
        on_new_storage: Callable[[Tensor, int, UntypedStorage], torch.device | None],
        find_place: Callable[[UntypedStorage], torch.device | None],
    ) -> None:
        self.storage_by_tensor = array("I")
        self.deaths = array("I")
        self.nbytes_by_storage: dict[int, int] = {}
        self.n_storages = 0
        self.has_aside = False
        self._aside: set[int] = set()
        self._first_aside: int | None = None
        self.aliased: set[int] = set()
        self._geometries = geometries
        self._clock = clock
        self._on_new_storage = on_new_storage
        self._find_place = find_place
        # Only one that was met is told from the rest, which its strides do not do.
        self._has_negatives = False
        self._storage_by_address: dict[int, StorageRef] = {}
        self._seen_by_id: dict[int, Seen] = {}
        self.forget = self._seen_by_id.pop
        # A callback written in Python would swallow an interrupt that lands in it.
        self.freed: list[StorageRef] = []
        self._on_death = self.freed.append

    @unbroken
    def note_deaths(self) -> None:
        """Note the storages freed since the last time; to be called before reading.

        Their addresses may have been given to others meanwhile. On the way of each
        operator it is called only where there are ``freed`` ones.
        """
        while self.freed:
            ref = self.freed.pop(0)
            if self._storage_by_address.get(ref.address) is ref:
                del self._storage_by_address[ref.address]
            if ref.address:
                self.deaths.extend((self._clock.now, ref.number))

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
            and self._storage_by_address.get(
                address_of_storage(tensor.untyped_storage())
            )
            is storage
            and tensor.stride() == geometry.stride
            and tensor.storage_offset() == geometry.offset
            and not self._has_negatives
        )

    def find(self, tensor: Tensor) -> Seen | None:
        """Return what is known of ``tensor`` if it was seen before as it is now."""
        seen = self._seen_by_id.get(id(tensor))
        if seen is None or self._is_as_seen(tensor, seen):
            return seen
        ref = self._find_ref(tensor)
        is_same = (
            ref is not None
            and seen[1] is ref
            and seen[2] is self._geometries.of(tensor, ref.place)
        )
        return seen if is_same else None

    def find_storage(self, tensor: Tensor) -> int | None:
        """Return the number of a tensor's storage if that was met."""
        ref = self._find_ref(tensor)
        return None if ref is None else ref.number

    def _find_ref(self, tensor: Tensor) -> StorageRef | None:
        """Return the reference to a tensor's storage if that was met."""
        try:
            address = address_of_storage(Tensor.untyped_storage(tensor))
        except (RuntimeError, NotImplementedError, ValueError):  # it has none
            return None
        return self._storage_by_address.get(address)

    def geometry_of(self, tensor: Tensor) -> LiveGeometry:
        """Return the geometry of ``tensor`` without numbering it."""
        return self._geometries.of(tensor, self.place_of(tensor))

    def place_of(self, tensor: Tensor) -> torch.device | None:
        """Return the device that the code names for a tensor."""
        ref = self._find_ref(tensor)
        if ref is not None:
            return ref.place
        try:
            return self._find_place(Tensor.untyped_storage(tensor))
        except (RuntimeError, NotImplementedError, ValueError):  # it has none
            return None

    def name_place(self, tensor: Tensor, place: torch.device | None) -> None:
        """Note on which device the code wants the storage of a tensor from now on.

        The tensors on it are read anew, as another reference stands for it.
        """
        former = self.storage_of(tensor)
        storage = None if former is None else former()
        if former is not None and storage is not None and former.place != place:
            self._refer_to(storage, former.number, place)
            former.address = 0

    def _read_anew(self, tensor: Tensor, seen: Seen | None) -> Seen:
        storage = self.storage_of(tensor)
        geometry = self._geometries.of(
            tensor, None if storage is None else storage.place
        )
        if seen is not None and seen[1] is storage and seen[2] is geometry:
            return seen
        if seen is not None and is_renamed(seen, storage, geometry):
            renamed = self._seen_by_id[id(tensor)] = (seen[0], storage, geometry)
            return renamed
        return self._add(tensor, storage, geometry)

    def add_seen(self, tensor: Tensor, geometry: LiveGeometry) -> int:
        """Number a tensor that has none yet, and whose geometry is known."""
        return self._add(tensor, self.storage_of(tensor), geometry)[0]

    def add_fresh(self, tensor: Tensor, geometry: LiveGeometry) -> int:
        """Number a tensor just made on a new storage of its own."""
        ref = self._add_storage(tensor.untyped_storage(), geometry.place)
        storages = self.storage_by_tensor
        number = len(storages)
        storages.append(ref.number)
        self._seen_by_id[id(tensor)] = (number, ref, geometry)
        return number

    def add_served(
        self, tensor: Tensor, number: int, storage: int, geometry: LiveGeometry
    ) -> None:
        """Note a tensor that was given its numbers before it was made."""
        ref = self._refer_to(tensor.untyped_storage(), storage, geometry.place)
        self._seen_by_id[id(tensor)] = (number, ref, geometry)

    def add_known(self, tensor: Tensor, number: int, geometry: LiveGeometry) -> None:
        """Note a tensor on a storage that was met before, whose number is known."""
        self._seen_by_id[id(tensor)] = (number, self.storage_of(tensor), geometry)

    def add_view(self, tensor: Tensor, base: Seen, geometry: LiveGeometry) -> int:
        """Number a tensor just made on the storage of ``base``."""
        number = len(self.storage_by_tensor)
        self.storage_by_tensor.append(self.storage_by_tensor[base[0]])
        self._seen_by_id[id(tensor)] = (number, base[1], geometry)
        return number

    def add_output(self, tensor: Tensor, place: torch.device | None) -> Seen:
        """Number a tensor that an operator returned, whatever its storage.

        Args:
            tensor: The tensor.
            place: Where its storage lies if that is new.
        """
        storage = self.storage_of(tensor, place)
        geometry = self._geometries.of(
            tensor, None if storage is None else storage.place
        )
        return self._add(tensor, storage, geometry)

    def renew(self, tensor: Tensor, seen: Seen) -> Seen:
        """Return what is known of an argument after an operator may have written it."""
        storage = self.storage_of(tensor)
        geometry = self._geometries.of(
            tensor, None if storage is None else storage.place
        )
        if storage is not seen[1]:
            if storage is not None:
                self.aliased.add(storage.number)
            return self._add(tensor, storage, geometry)
        renewed = (seen[0], storage, geometry)
        self._seen_by_id[id(tensor)] = renewed
        return renewed

    def storage_of(
        self, tensor: Tensor, place: torch.device | None = None
    ) -> StorageRef | None:
        """Return the storage of ``tensor``, numbered when new; None if it has none.

        Args:
            tensor: The tensor.
            place: Where a new one lies of which no earlier recording knows.
        """
        try:
            storage = Tensor.untyped_storage(tensor)
        except (RuntimeError, NotImplementedError):
            return None
        ref = self._storage_by_address.get(address_of_storage(storage))
        if ref is None:
            ref = self._add_storage(storage, place)
            if storage.nbytes() != span_nbytes(tensor):
                self.nbytes_by_storage[ref.number] = storage.nbytes()
            ref.place = self._on_new_storage(tensor, ref.number, storage) or place
        return ref

    def put_aside(self, make: Callable[[], Any]) -> Any:
        """Call what makes tensors that the cell wants on meta, and return them."""
        self.has_aside = True
        before, first = self._first_aside, self.n_storages
        self._first_aside = first
        try:
            return make()
        finally:
            self._aside.update(range(first, self.n_storages))
            self._first_aside = before

    def is_aside(self, tensor: int) -> bool:
        """Whether the cell put a tensor on meta by name."""
        storage, first = self.storage_by_tensor[tensor], self._first_aside
        return storage in self._aside or (first is not None and storage >= first)

    def note_alias(self, tensor: object) -> None:
        """Note that a tensor was made on the storage of another, by ``.data``."""
        with DisableTorchFunction():
            self.note_deaths()
            if isinstance(tensor, Tensor) and tensor.is_meta and not tensor.is_nested:
                ref = self.storage_of(tensor)
                if ref is not None:
                    self.aliased.add(ref.number)

    def living(self) -> list[StorageRef]:
        """Return a reference to each storage that lives."""
        self.note_deaths()
        return list(self._storage_by_address.values())

    def close(self) -> None:
        """Let go of all storages, and hear of no more deaths."""
        self.note_deaths()
        self._storage_by_address.clear()
        self._seen_by_id.clear()

    def _add_storage(
        self, storage: UntypedStorage, place: torch.device | None
    ) -> StorageRef:
        number = self.n_storages
        self.n_storages = number + 1
        return self._refer_to(storage, number, place)

    def _refer_to(
        self, storage: UntypedStorage, number: int, place: torch.device | None
    ) -> StorageRef:
        ref = StorageRef(storage, self._on_death)
        ref.number = number
        ref.place = place
        ref.address = address = address_of_storage(storage)
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
        self._has_negatives |= geometry.record.is_neg
        seen = (len(self.storage_by_tensor), storage, geometry)
        self.storage_by_tensor.append(number_of_storage)
        self._seen_by_id[id(tensor)] = seen
        return seen


def is_renamed(seen: Seen, storage: StorageRef | None, geometry: LiveGeometry) -> bool:
    """Whether a tensor is as it was seen, but for where the code wants it."""
    _, former, known = seen
    return (
        former is not None
        and storage is not None
        and former is not storage
        and former.number == storage.number
        and known.as_strided == geometry.as_strided
        and known.dtype is geometry.dtype
    )
