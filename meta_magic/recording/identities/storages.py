"""Number storages without holding any of them alive.

On meta every address is 0, so a weak reference identifies a storage, and notices when
the storage is freed. Also here: the bytes of real storages and their checksums, the
addresses that ``data_ptr()`` returns for storages on meta, and the clock that dates all
records.
Read :class:`StorageRegistry` first.
"""

import ctypes
import threading
import weakref
import zlib
from array import array
from collections.abc import Callable, Iterable
from typing import Any, Final

import torch
from torch import Tensor, UntypedStorage

from meta_magic.torch_private.distributed import locals_of
from meta_magic.torch_private.interrupts import uninterrupted
from meta_magic.torch_private.modes import DisableTorchDispatch, DisableTorchFunction
from meta_magic.torch_private.tensor_internals import address_of_storage, storage_under
from meta_magic.trace.signature import CPU


def span_nbytes(tensor: Tensor) -> int:
    """Return the bytes from a storage's start to the last element of ``tensor``."""
    if tensor.is_contiguous() or tensor.numel() == 0:
        return (int(tensor.storage_offset()) + tensor.numel()) * tensor.itemsize
    last = sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))
    return int(tensor.storage_offset() + last + 1) * tensor.itemsize


class Clock:
    """Counts the operator calls of one recording; the row writer alone moves it."""

    now = 0


FIRST_UNMAPPED: Final = 2**63  # no process has memory at this address or above

FIRST: Final = 2**64 + FIRST_UNMAPPED
"""The first address given. It takes more than 64 bits, so that a read of memory
there (``from_address`` of ctypes, numpy, a C extension) raises an error instead of
ending the process; code that keeps the lower 64 bits alone has no valid address."""

ALIGNMENT: Final = 64
ATTRIBUTE: Final = "meta_magic_address"
"""Attribute of a storage that holds its address, and the bytes it had then."""

lock = threading.Lock()
addresses = [FIRST]  # the next address to be given; none is given twice


def make_up_address(storage: UntypedStorage) -> int:
    """Return the address of a storage on meta; as on the CPU a multiple of 64.

    0 for a storage of no bytes, another one after a resize; no two storages overlap.
    """
    nbytes = storage.nbytes()
    if not nbytes:
        return 0
    address, nbytes_then = vars(storage).get(ATTRIBUTE, (0, 0))
    if nbytes_then != nbytes:
        with lock:
            address = addresses[0]
            addresses[0] += (nbytes + ALIGNMENT - 1) // ALIGNMENT * ALIGNMENT
        setattr(storage, ATTRIBUTE, (address, nbytes))
    return int(address)


string_at = ctypes.string_at  # a recording replaces this function, and the next
address_of_memory = UntypedStorage.data_ptr

MAX_COPIED_NBYTES: Final = 16 * 2**20
"""Bytes up to which the content of a real storage is copied, and summed each time."""

MAX_SMALL_NBYTES: Final = 64
"""Bytes up to which a copy is faster than a new type of ``ctypes``."""


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
    """Return a checksum of bytes, read from memory: numpy's use bars any resize."""
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
    """Return the address of a real storage; zeros of forward mode have no memory."""
    try:
        return address_of_memory(storage)
    except RuntimeError:
        return None


class StorageRef(weakref.ref[UntypedStorage]):
    """Weak reference to a storage that carries its number."""

    __slots__ = ("address", "number", "placement")
    number: int
    address: int
    placement: torch.device | None


class NamedDevices:
    """Whether any code named a device so far in this process."""

    exist = False


class StorageRegistry:
    """The numbers of the storages that one recording sees, and facts of each.

    Attributes:
        deaths: Pairs (operator calls recorded so far, storage), one per freed storage.
        sizes: (calls so far, storage, bytes from then on), where no operator made it.
        freed: Storages that were freed and are not noted yet.
        has_on_meta: Whether the cell put any tensor on meta by name.
        aliased: Storages with several version counters, as ``.data`` makes them.
    """

    def __init__(
        self,
        clock: Clock,
        on_new_storage: Callable[[Tensor, int, UntypedStorage], torch.device | None],
        find_placement: Callable[[UntypedStorage], torch.device | None],
    ) -> None:
        self.storage_by_tensor = array("I")
        self.deaths = array("I")
        self.nbytes_by_storage: dict[int, int] = {}
        self.sizes: list[tuple[int, int, int]] = []
        self.n_storages = 0
        self.has_on_meta = False
        self.on_meta: set[int] = set()
        self._first_on_meta: int | None = None
        self.aliased: set[int] = set()
        self.clock = clock
        self._on_new_storage = on_new_storage
        self._find_placement = find_placement
        self._storage_by_address: dict[int, StorageRef] = {}
        # A callback written in Python would swallow an interrupt that lands in it.
        self.freed: list[StorageRef] = []
        self._on_death = self.freed.append

    @uninterrupted
    def note_deaths(self) -> None:
        """Note the storages freed since the last time; to be called before reading.

        Their addresses may belong to other storages by now. For each operator it is
        called only if there are ``freed`` ones.
        """
        freed, known, now = self.freed, self._storage_by_address, self.clock.now
        while freed:
            ref = freed.pop(0)
            address = ref.address
            if not address:
                continue
            if known.get(address) is ref:
                del known[address]
            self.deaths.extend((now, ref.number))

    def find_storage(self, tensor: Tensor) -> int | None:
        """Return the number of a tensor's storage if it has one."""
        ref = self._find_ref(tensor)
        return None if ref is None else ref.number

    def find_storages(self, values: Iterable[object]) -> list[int]:
        """Return the numbers of the storages of all values that are tensors."""
        self.note_deaths()
        find, strided = self._storage_by_address.get, torch.strided
        plain = locals_of([value for value in values if isinstance(value, Tensor)])
        tensors = [tensor for tensor in plain if tensor.layout is strided]
        try:
            found = [find(address_of_storage(t.untyped_storage())) for t in tensors]
        except (RuntimeError, NotImplementedError, ValueError):  # one has none
            found = [*map(self._find_ref, tensors)]
        return [ref.number for ref in found if ref is not None]

    def note_size(self, ref: StorageRef, nbytes: int) -> None:
        """Note the bytes that a storage has from now on, which no operator gave it."""
        self.sizes.append((self.clock.now, ref.number, nbytes))

    def note_resized(self, storage: UntypedStorage) -> None:
        """Note the bytes that a storage has from now on, if it has a number."""
        self.note_deaths()
        ref = self._storage_by_address.get(address_of_storage(storage))
        if ref is not None:
            self.note_size(ref, storage.nbytes())

    def _find_ref(self, tensor: Tensor) -> StorageRef | None:
        try:
            address = address_of_storage(storage_under(tensor))
        except (RuntimeError, NotImplementedError, ValueError):  # it has no storage
            return None
        return self._storage_by_address.get(address)

    def storage_of(
        self, tensor: Tensor, placement: torch.device | None = None
    ) -> StorageRef | None:
        """Return the storage of ``tensor``, numbered when new; None if it has none."""
        try:
            storage = storage_under(tensor)
        except (RuntimeError, NotImplementedError):
            return None
        ref = self._storage_by_address.get(address_of_storage(storage))
        if ref is None:
            is_dense = tensor.layout is torch.strided
            nbytes = span_nbytes(tensor) if is_dense else storage.nbytes()
            ref = self._add_seen(storage, tensor, nbytes, placement)
        return ref

    @uninterrupted
    def _add_seen(
        self,
        storage: UntypedStorage,
        tensor: Tensor,
        nbytes: int,
        placement: torch.device | None = None,
    ) -> StorageRef:
        """Number a storage that no operator of the recording made."""
        number = self.n_storages
        self.n_storages = number + 1
        ref = self._refer_to(storage, number, placement)
        if storage.nbytes() != nbytes:
            self.nbytes_by_storage[ref.number] = storage.nbytes()
        ref.placement = self._on_new_storage(tensor, ref.number, storage) or placement
        return ref

    def placement_of(self, tensor: Tensor) -> torch.device | None:
        """Return the device that the code names for a tensor."""
        ref = self._find_ref(tensor)
        if ref is not None:
            return ref.placement
        try:
            return self._find_placement(storage_under(tensor))
        except (RuntimeError, NotImplementedError, ValueError):  # it has no storage
            return None

    def set_placement(self, tensor: Tensor, placement: torch.device | None) -> None:
        """Set the planned device of the storage of a tensor."""
        former = self.storage_of(tensor)
        storage = None if former is None else former()
        if former is not None and storage is not None and former.placement != placement:
            self._refer_to(storage, former.number, placement)
            former.address = 0

    def make_on_meta(self, make: Callable[[], Any]) -> Any:
        """Make tensors that the cell itself puts on meta, and return them."""
        self.has_on_meta = True
        before, first = self._first_on_meta, self.n_storages
        self._first_on_meta = first
        try:
            return make()
        finally:
            self.on_meta.update(range(first, self.n_storages))
            self._first_on_meta = before

    def is_on_meta(self, tensor: int) -> bool:
        """Whether the cell put a tensor on meta by name."""
        return self.is_storage_on_meta(self.storage_by_tensor[tensor])

    def is_storage_on_meta(self, storage: int) -> bool:
        """Whether the cell put a storage on meta by name."""
        first = self._first_on_meta
        return storage in self.on_meta or (first is not None and storage >= first)

    def note_alias(self, tensor: object) -> None:
        """Note that a tensor was made on the storage of another, by ``.data``."""
        with DisableTorchFunction():
            self.note_deaths()
            if isinstance(tensor, Tensor) and tensor.is_meta and not tensor.is_nested:
                ref = self.storage_of(tensor)
                if ref is not None:
                    self.aliased.add(ref.number)

    def live(self) -> list[StorageRef]:
        """Return a reference to each live storage."""
        self.note_deaths()
        return list(self._storage_by_address.values())

    def _refer_to(
        self, storage: UntypedStorage, number: int, placement: torch.device | None
    ) -> StorageRef:
        ref = StorageRef(storage, self._on_death)
        ref.number = number
        ref.placement = placement
        ref.address = address = address_of_storage(storage)
        self._storage_by_address[address] = ref
        return ref
