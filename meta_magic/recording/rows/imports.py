"""The meta storages of a recording that earlier recordings made."""

from collections.abc import Callable, Container
from typing import Final

import torch
from torch import Tensor, UntypedStorage

from meta_magic.recording.identities.living_tensors import LivingTensors
from meta_magic.recording.identities.origins import Running, find_origin
from meta_magic.torch_private.tensor_internals import version_of
from meta_magic.trace.program import Import

__all__ = ["Imports"]

UNCOUNTED: Final = (
    "a tensor of an earlier cell was made in inference mode, where torch does not "
    "count writes: one outside of any recording since is not seen"
)


class Imports:
    """Finds out where the storages come from that no operator of a recording made.

    Attributes:
        doubts: What may make them otherwise than the earlier recordings say.
        aliased: Those with tensors each of which counts its own writes.
    """

    def __init__(self) -> None:
        self.doubts: tuple[str, ...] = ()
        self.aliased: set[int] = set()
        self._imports: dict[int, Import] = {}
        self._living = LivingTensors()
        self._running = Running(self._imports.values())

    def note(
        self, tensor: Tensor, number: int, storage: UntypedStorage
    ) -> torch.device | None:
        """Note a storage that is met for the first time.

        Args:
            tensor: The first tensor met on it.
            number: Number of the storage.
            storage: The storage.

        Returns:
            The device that the code named for it.
        """
        found = find_origin(storage) if tensor.is_meta else None
        if found is None:
            return None
        origin, there = found
        version = 0
        if tensor.is_inference():
            self.doubts = (UNCOUNTED,)
        else:
            version = version_of(tensor)
        if there in origin.aliased:
            self.aliased.add(number)
        is_stale = origin.is_stale(tensor, version, there, self._living, self._running)
        self._imports[number] = Import(
            number, origin.program, there, storage.nbytes(), version, is_stale
        )
        return origin.places.get(there)

    def follow(self, find_written: Callable[[], Container[int]]) -> None:
        """Take what returns the storages that the recording wrote so far."""
        self._running = self._running._replace(find_written=find_written)

    def build(self) -> tuple[Import, ...]:
        """Return all that were found."""
        return tuple(self._imports.values())

    def find(self, storage: int) -> Import | None:
        """Return what is known of a storage that an earlier recording made."""
        return self._imports.get(storage)
