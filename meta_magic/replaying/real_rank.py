"""What a real process of a world holds and sends: its live bytes, its collectives.

It knows nothing of recordings, so that a plan can be compared with it. Read
:class:`RealRank` first.
"""

import sys
import weakref
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, UntypedStorage, distributed

from meta_magic.recording.identities.tensors import tensors_in
from meta_magic.torch_private.distributed import SHARDED, describe_group, read_group
from meta_magic.torch_private.modes import TorchDispatchMode
from meta_magic.torch_private.tensor_internals import address_of_storage, list_parts
from meta_magic.trace.world import REDUCTION, find_kind, find_reduction

if TYPE_CHECKING:
    from types import FrameType


class RealSent(NamedTuple):
    """A collective or a message of a real process, as :class:`Sent`, with its line."""

    kind: str
    ranks: tuple[int, ...]
    nbytes: int
    dtype: str
    reduce: str | None
    line: int | None


class RealRank(TorchDispatchMode):
    """Counts storages and lists collectives of the real code that runs within it."""

    def __init__(self, file: str = "") -> None:
        super().__init__()
        self.live_nbytes: list[int] = []
        self.sent: list[RealSent] = []
        self._file = file
        self._live = 0
        self._known: dict[int, tuple[weakref.ref[UntypedStorage], int]] = {}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if SHARDED in sys.modules:
            wrapper = sys.modules[SHARDED].DTensor
            if any(issubclass(kind, wrapper) for kind in types):
                return NotImplemented
        given = [*args, *(kwargs or {}).values()]
        self._count(list_tensors(given))
        returned = func(*args, **(kwargs or {}))
        self._count(list_tensors(returned))
        for address, (reference, nbytes) in list(self._known.items()):
            storage = reference()  # ``resize_`` may have changed its size
            if storage is not None and storage.nbytes() != nbytes:
                self._live += storage.nbytes() - nbytes
                self._known[address] = reference, storage.nbytes()
        self.live_nbytes.append(self._live)
        kind = find_kind(str(func))
        if kind is not None:
            self.sent.append(self._describe(kind, given, returned))
        return returned

    def _count(self, tensors: list[Tensor]) -> None:
        for tensor in tensors:
            is_fake = tensor.is_meta or type(tensor).__name__ == "FakeTensor"
            if tensor.layout is torch.strided and not is_fake:
                storage = tensor.untyped_storage()
                address = address_of_storage(storage)
                known = self._known.get(address)
                if known is None or known[0]() is not storage:
                    self._add(address, storage)

    def _add(self, address: int, storage: UntypedStorage) -> None:
        def drop(reference: object) -> None:
            if self._known.get(address, (None, 0))[0] is reference:
                self._live -= self._known.pop(address)[1]

        self._known[address] = weakref.ref(storage, drop), storage.nbytes()
        self._live += storage.nbytes()

    def _describe(self, kind: str, given: list[Any], returned: Any) -> RealSent:
        tensors = list_tensors((given, returned))
        largest = max(tensors, key=lambda tensor: tensor.nbytes)
        group = next(filter(None, map(read_group, given)), None)
        ranks = () if group is None else distributed.get_process_group_ranks(group)
        texts = [describe_group(value) or str(value) for value in given]
        frame: FrameType | None = sys._getframe(1)
        while frame is not None and frame.f_code.co_filename != self._file:
            frame = frame.f_back
        return RealSent(
            kind,
            tuple(ranks),
            largest.nbytes,
            str(largest.dtype).removeprefix("torch."),
            find_reduction(text.removeprefix(REDUCTION) for text in texts),
            None if frame is None else frame.f_lineno,
        )


def list_tensors(value: Any) -> list[Tensor]:
    """Return the tensors in nested lists; of a DTensor this process's shard."""
    return [part for tensor in tensors_in(value) for part in list_parts(tensor)]
