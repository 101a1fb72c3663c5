"""Remember which recording made a storage, for as long as the storage lives.

So a module can be materialized, and go on in a later cell, without its trace being
named: whoever holds one of its tensors leads to the program that makes it. Storages
are held weakly; a program is kept while one of its storages lives.
"""

import threading
import weakref
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from torch import Tensor, UntypedStorage, nn

from meta_magic.recording.identities.tensors import StorageRef
from meta_magic.torch_private.tensor_internals import address_of_storage, version_of
from meta_magic.trace.program import Program

__all__ = ["Origin", "find_origin", "keep_origins", "read_version"]


@dataclass(eq=False)
class Origin:
    """A finished recording, of which some storages may still live.

    Attributes:
        program: What was recorded.
        generator_state: Where the block, or what made up for its draws later, left
            torch's default generator; None if the block drew nothing from it.
        last_draw: The last draw that was made up for since; -1 for none.
        modules: The modules met that lived when the block ended, by their number in
            the program.
        versions: For the tensors of modules, by storage and ``id``, how often they had
            been written in place when the block ended, as torch counts it.
        checksums: Of those that are real and that the block made.
    """

    program: Program
    generator_state: bytes | None = None
    last_draw: int = -1
    modules: dict[int, weakref.ref[nn.Module]] = field(default_factory=dict)
    versions: dict[tuple[int, int], int] = field(default_factory=dict)
    checksums: dict[int, int] = field(default_factory=dict)

    def is_stale(self, tensor: Tensor, storage: int) -> bool:
        """Whether a tensor was written since, outside of any recording.

        Args:
            tensor: The tensor.
            storage: Number of its storage here.
        """
        version = self.versions.get((storage, id(tensor)))
        if version is None:
            # In no module then: as often as operators say, or less.
            program = self.program
            version = program.n_writes_by_storage[storage] + sum(
                i.version for i in program.imports if i.storage == storage
            )
        return read_version(tensor) > version


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
    """Remember that a recording made, or read, the storages that still live."""
    with lock:
        forget_dead()
        for ref in refs:
            storage = ref()
            if storage is None:
                continue
            # A callback written in Python would swallow an interrupt.
            kept = OriginRef(storage, dead.append)
            kept.origin, kept.number, kept.address = origin, ref.number, ref.address
            ref_by_address[ref.address] = kept


def find_origin(storage: UntypedStorage) -> tuple[Origin, int] | None:
    """Return the latest recording that met a storage, and its number there."""
    with lock:
        forget_dead()
        ref = ref_by_address.get(address_of_storage(storage))
        if ref is None or ref() is None:
            return None
        return ref.origin, ref.number


def read_version(tensor: Tensor) -> int:
    """Return how often a tensor was written in place, as torch counts it."""
    return 0 if tensor.is_inference() else int(version_of(tensor))


def forget_dead() -> None:
    """Let go of the recordings none of whose storages lives."""
    while dead:
        ref = dead.popleft()
        if ref_by_address.get(ref.address) is ref:
            del ref_by_address[ref.address]
