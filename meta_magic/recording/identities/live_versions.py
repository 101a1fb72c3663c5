"""Read how often live tensors were written in place.

No recording sees ``p.data.zero_()`` between two cells; the next cell detects it because
torch's count of writes is higher. Views and results of ``detach`` share the counter of
their base; ``.data`` and ``set_`` make tensors with counters of their own. Only the
garbage collector lists all tensors on a storage, which takes some 50 ms: it is asked
rarely. Read :class:`LiveTensors` first.
"""

import gc
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from functools import lru_cache
from itertools import compress
from typing import Final
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, UntypedStorage

from meta_magic.recording.identities.nested_tensors import is_traced
from meta_magic.recording.identities.storages import StorageRef
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

COUNTING: Final = "ADInplaceOrView"
"""Dispatch key of kernels that count writes; foreach, fused and norms have none."""

RESIZING: Final = ("aten.resize_.default", "aten.resize_as_.default")
"""Operators whose writes torch counts only if they change the size."""


class LiveTensors:
    """The versions of all meta tensors that are live at the first question."""

    def __init__(self) -> None:
        self._by_address: dict[int, list[dict[int, int]]] | None = None

    def on(self, address: int) -> list[dict[int, int]]:
        """Return the versions of the tensors on the storage of an address, by ``id``.

        Tensors with one counter are in one dictionary.
        """
        if self._by_address is None:
            self._by_address = find_versions()
        return self._by_address.get(address, [])


def find_versions() -> dict[int, list[dict[int, int]]]:
    """Return the versions of all live meta tensors, by storage."""
    found: dict[int, list[Tensor]] = {}
    with DisableTorchFunction():
        for tensor, address in find_stored():
            found.setdefault(address, []).append(tensor)
        return {address: group(tensors) for address, tensors in found.items()}


def find_live() -> Iterator[Tensor]:
    """Yield all live tensors, without the proxies of torch's tracing."""
    objects = gc.get_objects()
    tensors = (kind for kind in set(map(type, objects)) if issubclass(kind, Tensor))
    kinds = {
        kind for kind in tensors if not is_traced(kind)
    }  # a question to them would dispatch
    return compress(objects, map(kinds.__contains__, map(type, objects)))


def find_stored() -> Iterator[tuple[Tensor, int]]:
    """Yield each live meta tensor that has a storage, and the storage's address."""
    for tensor in find_live():
        if is_on_meta(tensor):
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
    version: int = version_of(tensor) if has_version(tensor) else 0
    return version


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
