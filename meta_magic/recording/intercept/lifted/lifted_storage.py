"""What a real storage is known as once it was lifted."""

from typing import TYPE_CHECKING, NamedTuple

from torch import Tensor, UntypedStorage

from meta_magic.recording.identities.live_versions import read_version
from meta_magic.recording.identities.storages import sum_small

if TYPE_CHECKING:
    import weakref

__all__ = ["Lifted"]


class Lifted(NamedTuple):
    """A real storage on meta.

    Attributes:
        real: It itself.
        base: Its bytes on meta.
        version: How often it had been written.
        checksum: Of its bytes; None if they are many.
        is_lent: Whether writes of it are planned.
    """

    real: "weakref.ref[UntypedStorage]"
    base: Tensor
    version: int
    checksum: int | None
    is_lent: bool

    def is_unchanged(self, real: Tensor, storage: UntypedStorage) -> bool:
        """Whether a real storage holds what it held when it was lifted."""
        if self.is_lent:  # what the cell writes is planned, and on meta
            return True
        if self.checksum is not None:
            return self.checksum == sum_small(storage)
        return self.version == read_version(real)
