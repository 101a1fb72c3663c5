"""Number storages without holding any of them.

On the meta device every address is 0, so a storage is told apart by a weak reference
that says when it dies.
"""

import weakref
from array import array
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, UntypedStorage

from meta_magic.recording.identities.clock import Clock
from meta_magic.recording.identities.geometries import span_nbytes
from meta_magic.torch_private.interrupts import unbroken
from meta_magic.torch_private.modes import DisableTorchFunction
from meta_magic.torch_private.tensor_internals import address_of_storage, storage_under

__all__ = ["NamedPlaces", "StorageRef", "StorageRegistry"]


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


class NamedPlaces:
    """Whether any code named a device so far in this process.

    Attributes:
        are_there: Whether it did; until then nothing is looked up.
    """

    are_there = False


class StorageRegistry:
    """The numbers of the storages that one recording meets, and what holds of them.

    Attributes:
        storage_by_tensor: For each tensor number, the number of its storage.
        deaths: Pairs (operator calls recorded so far, storage), one per freed storage.
        nbytes_by_storage: Bytes of the storages that are not just as large as needed
            by the tensor through which they were first met.
        sizes: (operator calls recorded so far, storage, bytes from then on) of storages
            that no operator made or resized.
        n_storages: Storages met so far.
        freed: Storages that were freed and are not noted yet.
        has_aside: Whether the cell put any tensor on meta by name.
        aside: Storages that it put there.
        aliased: Storages on which a tensor was made that counts its own writes.

    Args:
        clock: Dates the deaths of storages.
        on_new_storage: Called with the first tensor met on each storage that no served
            operator made, the number of the storage, and that; returns its place.
        find_place: Returns where an earlier recording left a storage.
    """

    def __init__(
        self,
        clock: Clock,
        on_new_storage: Callable[[Tensor, int, UntypedStorage], torch.device | None],
        find_place: Callable[[UntypedStorage], torch.device | None],
    ) -> None:
        self.storage_by_tensor = array("I")
        self.deaths = array("I")
        self.nbytes_by_storage: dict[int, int] = {}
        self.sizes: list[tuple[int, int, int]] = []
        self.n_storages = 0
        self.has_aside = False
        self.aside: set[int] = set()
        self._first_aside: int | None = None
        self.aliased: set[int] = set()
        self._clock = clock
        self._on_new_storage = on_new_storage
        self._find_place = find_place
        self._storage_by_address: dict[int, StorageRef] = {}
        # A callback written in Python would swallow an interrupt that lands in it.
        self.freed: list[StorageRef] = []
        self._on_death = self.freed.append

    @unbroken
    def note_deaths(self) -> None:
        """Note the storages freed since the last time; to be called before reading.

        Their addresses may have been given to others meanwhile. On the way of each
        operator it is called only where there are ``freed`` ones.
        """
        freed, known, now = self.freed, self._storage_by_address, self._clock.now
        while freed:
            ref = freed.pop(0)
            address = ref.address
            if not address:
                continue
            if known.get(address) is ref:
                del known[address]
            self.deaths.extend((now, ref.number))

    def find_storage(self, tensor: Tensor) -> int | None:
        """Return the number of a tensor's storage if that was met."""
        ref = self._find_ref(tensor)
        return None if ref is None else ref.number

    def find_storages(self, values: Iterable[object]) -> list[int]:
        """Return the numbers of the storages met of all values that are tensors."""
        self.note_deaths()
        find, strided = self._storage_by_address.get, torch.strided
        tensors = [v for v in values if isinstance(v, Tensor) and v.layout is strided]
        try:
            found = [find(address_of_storage(t.untyped_storage())) for t in tensors]
        except (RuntimeError, NotImplementedError, ValueError):  # one has none
            found = [*map(self._find_ref, tensors)]
        return [ref.number for ref in found if ref is not None]

    def note_size(self, ref: StorageRef, nbytes: int) -> None:
        """Note the bytes that a storage has by no operator, from now on."""
        self.sizes.append((self._clock.now, ref.number, nbytes))

    def note_resized(self, storage: UntypedStorage) -> None:
        """Note the bytes that a storage has from now on, if it was met."""
        self.note_deaths()
        ref = self._storage_by_address.get(address_of_storage(storage))
        if ref is not None:
            self.note_size(ref, storage.nbytes())

    def _find_ref(self, tensor: Tensor) -> StorageRef | None:
        """Return the reference to a tensor's storage if that was met."""
        try:
            address = address_of_storage(storage_under(tensor))
        except (RuntimeError, NotImplementedError, ValueError):  # it has none
            return None
        return self._storage_by_address.get(address)

    def storage_of(
        self, tensor: Tensor, place: torch.device | None = None
    ) -> StorageRef | None:
        """Return the storage of ``tensor``, numbered when new; None if it has none.

        Args:
            tensor: The tensor.
            place: Where a new one lies of which no earlier recording knows.
        """
        try:
            storage = storage_under(tensor)
        except (RuntimeError, NotImplementedError):
            return None
        ref = self._storage_by_address.get(address_of_storage(storage))
        if ref is None:
            is_dense = tensor.layout is torch.strided
            nbytes = span_nbytes(tensor) if is_dense else storage.nbytes()
            ref = self._meet(storage, tensor, nbytes, place)
        return ref

    @unbroken
    def _meet(
        self,
        storage: UntypedStorage,
        tensor: Tensor,
        nbytes: int,
        place: torch.device | None = None,
    ) -> StorageRef:
        """Number a storage that no operator of the recording made.

        Args:
            storage: The storage.
            tensor: The first tensor met on it.
            nbytes: How many bytes there are to the end of that.
            place: Where it lies if no earlier recording knows.
        """
        ref = self._add_storage(storage, place)
        if storage.nbytes() != nbytes:
            self.nbytes_by_storage[ref.number] = storage.nbytes()
        ref.place = self._on_new_storage(tensor, ref.number, storage) or place
        return ref

    def place_of(self, tensor: Tensor) -> torch.device | None:
        """Return the device that the code names for a tensor."""
        ref = self._find_ref(tensor)
        if ref is not None:
            return ref.place
        try:
            return self._find_place(storage_under(tensor))
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

    def put_aside(self, make: Callable[[], Any]) -> Any:
        """Call what makes tensors that the cell wants on meta, and return them."""
        self.has_aside = True
        before, first = self._first_aside, self.n_storages
        self._first_aside = first
        try:
            return make()
        finally:
            self.aside.update(range(first, self.n_storages))
            self._first_aside = before

    def is_aside(self, tensor: int) -> bool:
        """Whether the cell put a tensor on meta by name."""
        return self.is_storage_aside(self.storage_by_tensor[tensor])

    def is_storage_aside(self, storage: int) -> bool:
        """Whether the cell put a storage on meta by name."""
        first = self._first_aside
        return storage in self.aside or (first is not None and storage >= first)

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
