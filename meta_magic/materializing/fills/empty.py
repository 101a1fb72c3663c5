"""Leave the targets as memory without content."""

from collections.abc import Iterator, Sequence

import torch

from meta_magic.materializing.fills.protocol import Put
from meta_magic.materializing.report import Filling
from meta_magic.materializing.targets import Target
from meta_magic.replaying.memory import allocate

__all__ = ["EmptyFill"]


class EmptyFill:
    """Leaves all targets uninitialized."""

    def __init__(self, targets: Sequence[Target], device: torch.device) -> None:
        self._targets = targets
        self._device = device
        self.n_work = 0

    def filled_by(self, *_: object) -> Filling:
        """Say that nothing fills the target."""
        return "uninitialized"

    def peak_nbytes(self) -> int:
        """Return the bytes of all targets."""
        return sum(target.nbytes for target in self._targets)

    def run(self, put: Put) -> Iterator[int]:
        """Allocate all targets."""
        for target in self._targets:
            put(target, allocate(target.nbytes, self._device))
        yield 0
