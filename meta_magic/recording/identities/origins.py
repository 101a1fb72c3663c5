"""Keep the provenance of storages: which recording, and which storage of it, made each.

So ``materialize(model)`` in the next cell needs no trace: each tensor of the model
leads to the program that makes it. Read :func:`find_origin` first.

No recording sees ``p.data.zero_()`` between two cells; the next cell detects it because
torch's count of writes is higher. Views and results of ``detach`` share the counter of
their base; ``.data`` and ``set_`` make tensors with counters of their own. Only the
garbage collector lists all tensors on a storage (:class:`LiveTensors`), in some 50 ms.
"""

import gc
import threading
import weakref
from collections import Counter, deque
from collections.abc import (
    Callable,
    Container,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from collections.abc import Set as AbstractSet
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from itertools import compress
from typing import Any, ClassVar, Final
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, UntypedStorage, nn

from meta_magic.recording.identities.storages import StorageRef
from meta_magic.recording.identities.tensors import is_traced
from meta_magic.torch_private.dispatcher import has_kernel
from meta_magic.torch_private.modes import DisableTorchFunction
from meta_magic.torch_private.tensor_internals import (
    address_of_storage,
    count_owners,
    has_version,
    is_counted_with,
    is_on_meta,
    plan_part,
    version_of,
)
from meta_magic.trace.program import Program


@dataclass(eq=False)
class Origin:
    """A finished recording; some of its storages may still be live.

    Attributes:
        generator_state: State of torch's default generator after the block, or after
            its draws were made later; None if no draw is missing.
        last_draw: The last draw that was made later; -1 for none.
        modules: The live modules at the end of the block, by their number.
        versions: torch's count of in-place writes of a tensor at the end of the block,
            by its storage and ``id``: of tensors of modules, and of others whose count
            does not follow from the recorded calls. The storage is -1 for a tensor that
            wraps others, as DTensor does.
        aliased: Storages whose tensors have several such counts.
        n_unrecorded: How many counted writes of a storage have no row.
        owners: Address of each storage, and how many tensors were on it.
        checksums: Checksums of the real storages that the block made.
        placements: Devices that the code names for storages, for the device plan.
        has_placements: Whether any recording of this process has placements: until
            then none is looked up.
    """

    has_placements: ClassVar[bool] = False
    program: Program
    generator_state: bytes | None = None
    last_draw: int = -1
    modules: dict[int, weakref.ref[nn.Module]] = field(default_factory=dict)
    versions: Mapping[tuple[int, int], int] = field(default_factory=dict)
    aliased: AbstractSet[int] = frozenset()
    n_unrecorded: Mapping[int, int] = field(default_factory=dict)
    owners: dict[int, tuple[int, int]] = field(default_factory=dict)
    checksums: dict[int, int] = field(default_factory=dict)
    placements: dict[int, torch.device] = field(default_factory=dict)

    def is_stale(
        self, tensor: Tensor, version: int, storage: int, live: "LiveTensors"
    ) -> bool:
        """Whether a tensor was written since, even as ``x.data.add_(1)`` does it."""
        last = self.versions.get((storage, id(tensor)))
        if last is None and storage not in self._known_by_storage:
            last = self._n_counted[storage]
        is_higher = last is not None and version > last
        if is_higher and not self._is_counted_elsewhere(storage, {id(tensor)}, version):
            return True
        address, n_owners = self.owners[storage]
        has_others = last is None or storage in self.aliased
        if not has_others and count_owners(address) <= n_owners:
            return False
        return self._has_stale(live.on(address), storage)

    def _has_stale(self, groups: Sequence[Mapping[int, int]], storage: int) -> bool:
        known = self._known_by_storage.get(storage)
        if known is None:  # then the recording wrote at most one of them
            n_writes = sorted(max(group.values()) for group in groups)
            return any(n_writes[:-1]) or n_writes[-1:] > [self._n_counted[storage]]
        alive = frozenset().union(*groups)
        # A tensor made since begins at 0, or has the counter of one that was freed.
        others = {0, *(version for key, version in known.items() if key not in alive)}
        for group in groups:
            version, last = max(group.values()), [known[k] for k in group if k in known]
            is_higher = version > max(last) if last else version not in others
            if is_higher and not self._is_counted_elsewhere(storage, group, version):
                return True
        return False

    def _is_counted_elsewhere(
        self, storage: int, keys: Container[int], version: int
    ) -> bool:
        """Whether a counter rose by recorded writes of a tensor on other memory.

        ``kept = weight.detach()`` shares the counter of ``weight``, also after
        ``weight.data = weight.half()``. ``keys`` are the ``id()`` of the tensors on
        this storage.
        """
        if storage not in self.aliased:
            return False
        with DisableTorchFunction():
            live = find_stored(find_live(is_tensor_class))
            counted = [t for t, _ in live if read_version(t) == version]
            own = [tensor for tensor in counted if id(tensor) in keys]
            for other in counted:
                found = find_origin(other.untyped_storage())
                if found is None or id(other) in keys:
                    continue
                at_end = found[0].versions.get((found[1], id(other)))
                is_recorded = at_end == version and self._leads_to(*found)
                if is_recorded and any(is_counted_with(other, t) for t in own):
                    return True
        return False

    def _leads_to(self, origin: "Origin", storage: int) -> bool:
        """Whether nothing outside wrote a storage from this to a later recording."""
        program = origin.program
        while program is not self.program:
            earlier = next((i for i in program.imports if i.storage == storage), None)
            if earlier is None or earlier.is_stale:
                return False
            program, storage = earlier.program, earlier.origin
        return True

    @cached_property
    def _known_by_storage(self) -> dict[int, dict[int, int]]:
        found: dict[int, dict[int, int]] = {}
        for (storage, key), version in self.versions.items():
            found.setdefault(storage, {})[key] = version
        return found

    @cached_property
    def _n_counted(self) -> Counter[int]:
        """How many writes torch has counted of each storage."""
        counted = self.program.count_writes(is_counted)
        for imported in self.program.imports:
            counted[imported.storage] += imported.version
        counted.update(self.n_unrecorded)
        return counted


class OriginRef(weakref.ref[UntypedStorage]):
    """Weak reference to a storage that knows which recording made it."""

    __slots__ = ("address", "number", "origin")
    origin: Origin
    number: int
    address: int


ref_by_address: dict[int, OriginRef] = {}
dead: deque[OriginRef] = deque()
lock = threading.RLock()


def keep_origins(origin: Origin, refs: Iterable[StorageRef]) -> None:
    """Remember that a recording made, or read, the storages that are still live."""
    if origin.placements:
        Origin.has_placements = True
    with lock:
        forget_dead()
        for ref in refs:
            storage = ref()
            if storage is None:
                continue
            # A callback written in Python would swallow an interrupt.
            kept = OriginRef(storage, dead.append)
            kept.origin, kept.number, kept.address = origin, ref.number, ref.address
            origin.owners[ref.number] = ref.address, count_owners(ref.address)
            ref_by_address[ref.address] = kept


def has_origins() -> bool:
    """Whether any storage that a recording made or read is live."""
    with lock:
        forget_dead()
        return bool(ref_by_address)


def list_recorded() -> set[int]:
    """Return the addresses of the live storages that recordings made or read."""
    with lock:
        forget_dead()
        return {address for address, ref in ref_by_address.items() if ref() is not None}


def find_origin(storage: UntypedStorage) -> tuple[Origin, int] | None:
    """Return the latest recording that used a storage, and its number there."""
    if dead:  # else one look-up, which is atomic
        with lock:
            forget_dead()
    ref = ref_by_address.get(address_of_storage(storage))
    return None if ref is None or ref() is None else (ref.origin, ref.number)


def find_recorded_placement(storage: UntypedStorage) -> torch.device | None:
    """Return the device that the code of an earlier recording named for a storage."""
    found = find_origin(storage) if Origin.has_placements else None
    return None if found is None else found[0].placements.get(found[1])


def live_storages_of(program: Program) -> set[int]:
    """Return the live storages that no later recording used."""
    with lock:
        forget_dead()
        refs = [ref for ref in ref_by_address.values() if ref.origin.program is program]
        return {ref.number for ref in refs}


def forget_dead() -> None:
    """Drop the recordings without a live storage."""
    while dead:
        ref = dead.popleft()
        if ref_by_address.get(ref.address) is ref:
            del ref_by_address[ref.address]


COUNTING: Final = "ADInplaceOrView"
"""Dispatch key of kernels that count writes; foreach, fused and norms have none."""

RESIZING: Final = ("aten.resize_.default", "aten.resize_as_.default")
"""Operators whose writes torch counts only if they change the size."""


class LiveTensors:
    """The versions of all meta tensors that are live at the first question."""

    def __init__(self) -> None:
        self._by_address: dict[int, list[dict[int, int]]] | None = None

    def on(self, address: int) -> list[dict[int, int]]:
        """Return the versions of the tensors on an address's storage, by ``id``."""
        if self._by_address is None:
            found: dict[int, list[Tensor]] = {}
            with DisableTorchFunction():
                for tensor, at in find_stored(find_live(is_tensor_class)):
                    found.setdefault(at, []).append(tensor)
                self._by_address = {at: group(held) for at, held in found.items()}
        return self._by_address.get(address, [])


def find_live(is_wanted: Callable[[type], bool]) -> list[Any]:
    """Return the live objects of some classes: a look at all objects, some 35 ms."""
    objects, known = gc.get_objects(), Kinds(is_wanted)
    return [*compress(objects, map(known.__getitem__, map(type, objects)))]


class Kinds(dict[type, bool]):
    """Whether objects of a class are wanted; each class is asked for once."""

    def __init__(self, is_wanted: Callable[[type], bool]) -> None:
        super().__init__()
        self._is_wanted = is_wanted

    def __missing__(self, kind: type) -> bool:
        found = self[kind] = self._is_wanted(kind)
        return found


def is_tensor_class(kind: type) -> bool:
    """Whether objects of a class are tensors, and no proxies of torch's tracing.

    A question to such a proxy would dispatch.
    """
    return issubclass(kind, Tensor) and not is_traced(kind)


def find_stored(objects: Iterable[object]) -> Iterator[tuple[Tensor, int]]:
    """Yield each meta tensor that has a storage, and the storage's address."""
    for tensor in objects:
        if isinstance(tensor, Tensor) and is_on_meta(tensor):
            # Sparse tensors have no storage, nor have the wrappers of functorch.
            with suppress(RuntimeError, NotImplementedError, ValueError):
                yield tensor, address_of_storage(tensor.untyped_storage())


def group(tensors: Iterable[Tensor]) -> list[dict[int, int]]:
    """Return the versions of tensors by ``id``, one dictionary for each counter."""
    groups: list[tuple[Tensor, dict[int, int]]] = []
    for tensor in tensors:
        version = read_version(tensor)
        for first, versions in groups:
            if version == read_version(first) and (
                not has_version(tensor)
                or not has_version(first)
                or is_counted_with(tensor, first)
            ):
                versions[id(tensor)] = version
                break
        else:
            groups.append((tensor, {id(tensor): version}))
    return [versions for _, versions in groups]


def read_version(tensor: Tensor) -> int:
    """Return how often a tensor was written in place, as torch counts it."""
    return int(version_of(tensor)) if has_version(tensor) else 0


def list_versions(tensors: Sequence[Tensor]) -> list[int]:
    """Return how often each of some tensors was written in place."""
    try:
        return [*map(version_of, tensors)]
    except RuntimeError:  # one is of inference mode
        return [*map(read_version, tensors)]


@lru_cache(maxsize=4096)
def is_counted(op: str) -> bool:
    """Whether torch counts each write of an operator, by its name in a program."""
    if op in RESIZING:
        return False
    name = op.replace(".", "::", 1).removesuffix(".default")
    try:
        return bool(has_kernel(name, COUNTING))
    except RuntimeError:  # an initializer
        return False


def add_uncounted_versions(
    program: Program,
    refs: Iterable[StorageRef],
    aliased: AbstractSet[int],
    known: dict[tuple[int, int], int],
) -> None:
    """Add the versions that do not follow from the recorded calls."""
    suspects = aliased | program.count_writes(lambda op: not is_counted(op)).keys()
    if not suspects:
        return
    n_known = Counter(storage for storage, _ in known)
    live = LiveTensors()
    for ref in refs:
        number, storage = ref.number, ref() if ref.number in suspects else None
        if storage is None:
            continue
        n_wanted = count_owners(ref.address) if number in aliased else 1
        if n_known[number] < n_wanted:
            for group in live.on(ref.address):
                known.update({(number, key): v for key, v in group.items()})


known: WeakKeyDictionary[UntypedStorage, tuple[int, Tensor]] = WeakKeyDictionary()
"""Version and values of the positions, by their storage on meta."""


def plan_positions(real: Tensor) -> Tensor:
    """Return positions on meta whose values are known."""
    with torch.inference_mode(mode=False):  # torch counts writes
        planned = plan_part(real)
    known[planned.untyped_storage()] = read_version(planned), real
    return planned


def find_positions(planned: Tensor) -> Tensor | None:
    """Return the values of positions on meta; None if unknown, or written since."""
    version, real = known.get(planned.untyped_storage(), (-1, None))
    return real if version == read_version(planned) else None
