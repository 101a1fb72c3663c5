"""Read how often live tensors were written in place.

No recording sees ``p.data.zero_()`` between two cells; the next cell detects it because
torch's count of writes is higher. Views and results of ``detach`` share the counter of
their base; ``.data`` and ``set_`` make tensors with counters of their own. Only the
garbage collector lists all tensors on a storage, which takes some 50 ms: it is asked
rarely. Read :class:`LiveTensors` first.
"""

import gc
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
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
from meta_magic.torch_private.modes import DisableTorchDispatch, DisableTorchFunction
from meta_magic.torch_private.tensor_internals import (
    address_of_storage,
    count_owners,
    has_version,
    is_counted_with,
    is_on_meta,
    number_counters,
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


def can_count(tensor: Tensor) -> bool:
    """Whether torch counts the writes of a tensor, and it has bytes to write."""
    try:  # as has_version, without its call: each live tensor is asked
        version_of(tensor)
    except RuntimeError:
        return False
    return tensor.untyped_storage().nbytes() > 0


def make_counters(addresses: Collection[int]) -> dict[int, list[Tensor]]:
    """Return an empty tensor for each version counter of the tensors on some storages.

    It keeps the counter after the tensor itself is gone.

    Args:
        addresses: Addresses of the storages.
    """
    found: dict[int, list[Tensor]] = {}
    with DisableTorchFunction(), DisableTorchDispatch(), torch.no_grad():
        for tensor, address in find_stored():
            if address not in addresses or not has_version(tensor):
                continue
            counter = tensor.detach()
            empty = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
            with suppress(RuntimeError):  # lazily conjugated, nested, ...
                counter.data = empty
                found.setdefault(address, []).append(counter)
    return found


def is_last(counter: Tensor) -> bool:
    """Whether no writable tensor uses this version counter any more."""
    with DisableTorchFunction():
        tensors = [tensor for tensor, _ in find_stored() if can_count(tensor)]
        own, *numbers = number_counters([counter, *tensors])
    return own not in numbers


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


def find_uncounted_versions(
    program: Program,
    refs: Iterable[StorageRef],
    aliased: AbstractSet[int],
    known: dict[tuple[int, int], int],
) -> dict[int, list[tuple[Tensor, int]]]:
    """Find the versions that do not follow from the recorded calls, and are not known.

    Args:
        aliased: The storages with several version counters.
        known: The versions that were read, by storage and ``id``; found ones are
            added.

    Returns:
        What :attr:`Origin.counters` holds.
    """
    suspects = aliased | program.count_writes(lambda op: not is_counted(op)).keys()
    if not suspects:
        return {}
    n_known = Counter(storage for storage, _ in known)
    live, divided = LiveTensors(), {}
    for ref in refs:
        number, storage = ref.number, ref() if ref.number in suspects else None
        if storage is None:
            continue
        n_wanted = count_owners(ref.address) if number in aliased else 1
        if n_known[number] < n_wanted:
            groups = live.on(ref.address)
            for group in groups:
                known.update({(number, key): v for key, v in group.items()})
            if len(groups) > 1:
                divided[ref.address] = number
    made = make_counters(divided) if divided else {}
    return {
        divided[address]: [(counter, read_version(counter)) for counter in counters]
        for address, counters in made.items()
    }


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
