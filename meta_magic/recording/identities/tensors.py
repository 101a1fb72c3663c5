"""Number tensors without holding any of them alive.

``id()`` repeats as soon as a tensor is freed, so an ``id()`` counts as the same tensor
only while storage and geometry agree. Tensors are never weakly referenced:
``torch.utils.swap_tensors`` would then refuse them. Read
:meth:`TensorRegistry.read` first.

Equal geometries are one object (:class:`GeometryTable`), so that the keys of the
operator cache compare objects, not shapes and strides.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import accumulate
from operator import mul
from typing import Any, Final, TypeAlias

import torch
from torch import Tensor, UntypedStorage, nn
from torch.autograd.graph import increment_version

from meta_magic.recording.identities.storages import Clock, StorageRef, StorageRegistry
from meta_magic.torch_private.modes import DisableTorchFunction
from meta_magic.torch_private.module_internals import (
    buffers_of,
    parameters_of,
    walk_modules,
)
from meta_magic.torch_private.tensor_internals import (
    SPARSE,
    address_of_storage,
    has_coalesced,
    has_version,
    parts_of,
    version_of,
)
from meta_magic.trace.signature import META, Geometry
from meta_magic.trace.units import NamedSize


def tensors_in(*values: object) -> list[Tensor]:
    """Return the tensors in ``values`` in order, looking into lists and tuples."""
    found: list[Tensor] = []
    for value in values:
        if isinstance(value, Tensor):
            found.append(value)
        elif isinstance(value, (list, tuple)):
            found.extend(tensors_in(*value))
        elif isinstance(value, dict):
            found.extend(tensors_in(*value.values()))
    return found


def rebuild(value: Any, replace: Callable[[Any], Any]) -> Any:
    """Return nested values in which ``replace`` is applied to all but containers."""
    kind = type(value)
    if kind in {list, tuple, torch.Size}:  # a named tuple may check what it holds
        items = [rebuild(item, replace) for item in value]
        return items if kind is list else tuple(items)
    if isinstance(value, dict):
        return {name: rebuild(item, replace) for name, item in value.items()}
    if kind is slice:
        parts = value.start, value.stop, value.step
        return slice(*[rebuild(part, replace) for part in parts])
    return replace(value)


def tensors_of(root: nn.Module) -> Iterator[Tensor]:
    """Yield the parameters and buffers of a module and all below it."""
    return (tensor for _, tensor in name_tensors(root))


def name_tensors(root: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yield the parameters and buffers below a module, each with its path."""
    for fqn, module in walk_modules(root):
        prefix = f"{fqn}." if fqn else ""
        for held in (parameters_of(module), buffers_of(module)):
            for name, tensor in held.items():
                if tensor is not None:
                    yield prefix + name, tensor


TRACED: Final = ("FakeTensor", "FunctionalTensor")


def is_traced(kind: type) -> bool:
    """Whether tensors of a class are proxies while torch traces."""
    return kind.__name__ in TRACED and kind.__module__.startswith("torch.")


QUANTIZED: Final = frozenset(
    {torch.qint8, torch.quint8, torch.qint32, torch.quint4x2, torch.quint2x4}
)
COMPLEX: Final = frozenset({torch.complex32, torch.complex64, torch.complex128})


class LiveGeometry:
    """An interned geometry: its hash is its identity.

    Attributes:
        is_in_rows: Whether it has elements, and its strides are those of a new tensor
            of its shape.
        is_real: Whether it is the geometry of a dense tensor in memory, without lazy
            conjugation or negation.
        is_makeable: Whether a tensor with it can be made by ``empty_strided``.
    """

    def __init__(self, record: Geometry) -> None:
        self.record = record
        self.shape = record.shape
        self.stride: Any = record.stride  # None where nothing is made with it
        self.offset = record.storage_offset
        self.as_strided: Any = (record.shape, record.stride, record.storage_offset)
        # Complex tensors may be conjugated lazily, which a quick look does not show.
        self.dtype = None if record.dtype in COMPLEX else record.dtype
        self.is_meta = record.device.type == "meta"
        self.placement = record.placement
        self.is_in_rows = record.stride is None or (
            record.stride == strides_of_rows(record.shape) and 0 not in record.shape
        )
        is_dense = (
            record.layout is torch.strided
            and record.stride is not None
            and not (record.is_conj or record.is_neg or record.dtype in QUANTIZED)
        )
        self.is_makeable = self.is_meta and is_dense
        self.is_real = record.device.type == "cpu" and is_dense
        stride: Any = record.stride
        self.make: Callable[[], Tensor] = partial(
            torch.empty_strided, self.shape, stride, dtype=record.dtype, device=META
        )


class GeometryTable:
    """All geometries so far, one :class:`LiveGeometry` for each."""

    def __init__(self) -> None:
        self._geometry_by_key: dict[tuple[object, ...], LiveGeometry] = {}

    def of(self, tensor: Tensor, placement: torch.device | None) -> LiveGeometry:
        """Return the geometry of ``tensor``, whose planned device is ``placement``."""
        # A mode of the user would ask for the device, and get the reported one; a
        # subclass may refuse to say: an uninitialized parameter has no ``shape``.
        with DisableTorchFunction():
            return self._of(tensor, placement)

    def _of(self, tensor: Tensor, placement: torch.device | None) -> LiveGeometry:
        is_conj, is_neg = tensor.is_conj(), tensor.is_neg()
        try:
            stride, offset = tensor.stride(), int(tensor.storage_offset())
        except (RuntimeError, NotImplementedError):  # sparse and nested layouts
            stride, offset = None, None
        values_shape, is_coalesced = None, False
        if tensor.layout in SPARSE or tensor.layout is torch.jagged:
            # Coordinates report strides of 0, and jagged tensors symbols.
            stride, offset = None, None
        if tensor.layout in SPARSE:
            values_shape = tuple(parts_of(tensor)[-1].shape)
            is_coalesced = has_coalesced(tensor)
        shape, device, layout = size_of(tensor), tensor.device, tensor.layout
        flags = (is_conj, is_neg, placement, values_shape, is_coalesced)
        key = (shape, stride, offset, tensor.dtype, device, layout, flags)
        geometry = self._geometry_by_key.get(key)
        if geometry is None:
            record = Geometry(
                shape=shape,
                stride=stride,
                storage_offset=offset,
                dtype=tensor.dtype,
                device=device,
                layout=layout,
                is_conj=is_conj,
                is_neg=is_neg,
                placement=placement,
                values_shape=values_shape,
                is_coalesced=is_coalesced,
            )
            geometry = self._geometry_by_key[key] = LiveGeometry(record)
        return geometry


def strides_of_rows(shape: Sequence[int]) -> tuple[int, ...]:
    """Return the strides of a new tensor of a shape."""
    return tuple(accumulate(reversed(shape[1:]), mul, initial=1))[::-1] if shape else ()


def size_of(tensor: Tensor) -> tuple[int, ...]:
    """Return the sizes of a tensor.

    None of a strided nested one, whose rows differ; of a jagged one, the size that
    differs is 0 with a name, such as ``j1``.
    """
    try:
        sizes = tuple(Tensor.size(tensor))
    except RuntimeError:
        return ()
    if tensor.layout is not torch.jagged:
        return sizes
    return tuple(n if type(n) is int else NamedSize(0, str(n)) for n in sizes)


Seen: TypeAlias = tuple[int, StorageRef | None, LiveGeometry]
"""A tensor as last seen: its number, its storage (None: it has none), its geometry."""


class TensorRegistry(StorageRegistry):
    """The numbers of the tensors that one recording sees, and of their storages.

    Attributes:
        seen_by_id: What was last seen at each address; perhaps another is there now.
        n_unrecorded: How many counted writes of a storage have no row.
        forget: Drops what was last seen at an ``id()``; takes that, and None.
    """

    def __init__(
        self,
        geometries: GeometryTable,
        clock: Clock,
        on_new_storage: Callable[[Tensor, int, UntypedStorage], torch.device | None],
        find_placement: Callable[[UntypedStorage], torch.device | None],
    ) -> None:
        super().__init__(clock, on_new_storage, find_placement)
        self._geometries = geometries
        # Strides do not show negation: from the first negative tensor on, keys do.
        self._has_negatives = False
        self.seen_by_id: dict[int, Seen] = {}
        self.n_unrecorded = Counter[int]()
        self.forget = self.seen_by_id.pop

    def read(self, tensor: Tensor) -> Seen:
        """Return number, storage and geometry of ``tensor``, a new number if needed."""
        seen = self.seen_by_id.get(id(tensor))
        if seen is not None:
            # Another tensor may be at the address now: all that a key depends on is
            # compared. In line, as each operator reads two tensors.
            _, storage, geometry = seen
            try:
                if (
                    tensor.dtype is geometry.dtype
                    and tensor.shape == geometry.shape
                    and storage is not None
                    and storage() is tensor.untyped_storage()
                    and storage.address != 0
                    and tensor.stride() == geometry.stride
                    and tensor.storage_offset() == geometry.offset
                    and not self._has_negatives
                ):
                    return seen
            except (RuntimeError, ValueError):  # an uninitialized parameter
                pass
        return self._read_anew(tensor, seen)

    def read_again(self, tensor: Tensor) -> Seen:
        """Return number, storage and geometry of a tensor that was just read."""
        return self.seen_by_id.get(id(tensor)) or self.read(tensor)

    def find(self, tensor: Tensor) -> Seen | None:
        """Return the last entry of ``tensor``, if the tensor has not changed since."""
        seen = self.seen_by_id.get(id(tensor))
        ref = None if seen is None else self._find_ref(tensor)
        if seen is None or ref is None:
            return None
        geometry = self._geometries.of(tensor, ref.placement)
        if seen[1] is ref and seen[2] is geometry:
            return seen
        return self._rename(tensor, seen, ref, geometry)

    def verify(self, tensors: Iterable[Tensor]) -> None:
        """Forget tensors at whose addresses there are others now."""
        for tensor in tensors:
            _, storage, _ = self.seen_by_id.get(id(tensor), (0, None, None))
            if storage is not None and self.find(tensor) is None:
                self.forget(id(tensor), None)

    def _rename(
        self,
        tensor: Tensor,
        seen: Seen,
        storage: StorageRef | None,
        geometry: LiveGeometry,
    ) -> Seen | None:
        """Return a tensor as seen, with a new placement; None if more changed."""
        _, former, known = seen
        if (
            former is None
            or storage is None
            or former is storage
            or former.number != storage.number
            or known.as_strided != geometry.as_strided
            or known.dtype is not geometry.dtype
        ):
            return None
        renamed = self.seen_by_id[id(tensor)] = (seen[0], storage, geometry)
        return renamed

    def _read_anew(self, tensor: Tensor, seen: Seen | None) -> Seen:
        storage = self.storage_of(tensor)
        geometry = self._geometries.of(tensor, storage.placement if storage else None)
        if seen is not None and seen[1] is storage and seen[2] is geometry:
            return seen
        renamed = seen and self._rename(tensor, seen, storage, geometry)
        return renamed or self._add(tensor, storage, geometry)

    def add_fresh(self, tensor: Tensor, geometry: LiveGeometry) -> int:
        """Number a tensor just made on a new storage of its own."""
        storage, storages = tensor.untyped_storage(), self.storage_by_tensor
        ref = StorageRef(storage, self._on_death)  # as ``_add_storage``, in line
        ref.number = n_storages = self.n_storages
        self.n_storages = n_storages + 1
        ref.placement = geometry.placement
        ref.address = address = address_of_storage(storage)
        self._storage_by_address[address] = ref
        number = len(storages)
        storages.append(n_storages)
        self.seen_by_id[id(tensor)] = (number, ref, geometry)
        return number

    def add_view(self, tensor: Tensor, base: Seen, geometry: LiveGeometry) -> int:
        """Number a tensor just made on the storage of ``base``."""
        number = len(self.storage_by_tensor)
        self.storage_by_tensor.append(self.storage_by_tensor[base[0]])
        self.seen_by_id[id(tensor)] = (number, base[1], geometry)
        return number

    def add_output(self, tensor: Tensor, placement: torch.device | None) -> Seen:
        """Number a tensor that an operator returned, whatever its storage."""
        storage = self.storage_of(tensor, placement)
        geometry = self._geometries.of(tensor, storage.placement if storage else None)
        return self._add(tensor, storage, geometry)

    def renew(self, tensor: Tensor, seen: Seen) -> Seen:
        """Read an argument again after an operator may have written it."""
        storage = self.storage_of(tensor)
        geometry = self._geometries.of(tensor, storage.placement if storage else None)
        if storage is not seen[1]:
            # It keeps its version counter, which tensors on the old storage share.
            self.aliased.update(ref.number for ref in (seen[1], storage) if ref)
            return self._add(tensor, storage, geometry)
        renewed = (seen[0], storage, geometry)
        self.seen_by_id[id(tensor)] = renewed
        return renewed

    def count_write(self, tensor: Tensor) -> None:
        """Count a write of a tensor for which there is no row."""
        storage = self.read_again(tensor)[1]
        if storage is not None and has_version(tensor):
            increment_version(tensor)
            self.n_unrecorded[storage.number] += 1

    def note_writes_before(self, tensor: Tensor) -> None:
        """Note how often a tensor that was real until now was written."""
        storage = self.storage_of(tensor)
        if storage is not None and has_version(tensor):
            if storage.number in self.n_unrecorded:  # by another counter
                self.aliased.add(storage.number)
            self.n_unrecorded[storage.number] = version_of(tensor)

    def note_new_alias(self, tensor: Tensor) -> None:
        """Note a tensor just made by no operator, on the storage of another one."""
        self.forget(id(tensor), None)
        self.note_alias(tensor)

    def close(self) -> None:
        """Drop all storages, and note no more deaths."""
        self.note_deaths()
        self._storage_by_address.clear()
        self.seen_by_id.clear()

    def _add(
        self, tensor: Tensor, storage: StorageRef | None, geometry: LiveGeometry
    ) -> Seen:
        number_of_storage = storage.number if storage else self.n_storages
        if storage is None:  # sparse and nested tensors get a storage number each
            self.n_storages += 1
        self._has_negatives |= geometry.record.is_neg
        seen = (len(self.storage_by_tensor), storage, geometry)
        self.storage_by_tensor.append(number_of_storage)
        self.seen_by_id[id(tensor)] = seen
        return seen
