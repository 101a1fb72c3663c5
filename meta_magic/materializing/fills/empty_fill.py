"""``init="empty"``: memory without content."""

from collections.abc import Iterator, Sequence
from typing import ClassVar

from torch import Tensor

from meta_magic.materializing.fills.protocol import Put, Task
from meta_magic.materializing.report import UNINITIALIZED
from meta_magic.materializing.targets import Target
from meta_magic.replaying.memory import allocate

__all__ = ["EmptyFill"]


class EmptyFill:
    """Leaves all targets uninitialized.

    Args:
        task: What is to be filled.

    Attributes:
        device: Where they are made.
    """

    gives: ClassVar = "nothing; all is uninitialized memory"

    def __init__(self, task: Task) -> None:
        self.targets = task.targets
        self.n_work = 0
        self.n_operators = 0
        self.device = task.device

    def peak_nbytes(self) -> int:
        """Return the bytes of all targets."""
        return sum(target.nbytes for target in self.targets)

    def run(self, put: Put) -> Iterator[int]:
        """Allocate all targets."""
        for target in self.targets:
            put(target, allocate(target.nbytes, self.device))
        yield 0

    def finish(self) -> Sequence[str]:
        """Leave it at that."""
        return ()

    def filled_by(self, _target: Target, _tensor: Tensor, /) -> str:
        """Say that nothing fills the target."""
        return UNINITIALIZED
