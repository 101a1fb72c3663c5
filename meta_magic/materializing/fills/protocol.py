"""What fills the tensors of a module, as materialize asks for it."""

from collections.abc import Callable, Iterator
from typing import Protocol, TypeAlias

from torch import Tensor, UntypedStorage

from meta_magic.materializing.report import Filling
from meta_magic.materializing.targets import Target

__all__ = ["Content", "Fill", "Put"]

Content: TypeAlias = UntypedStorage | Tensor
"""What a target gets: a storage like its own, or a tensor in place of its only one."""

Put: TypeAlias = Callable[[Target, Content], None]


class Fill(Protocol):
    """A source of content, planned and not begun."""

    @property
    def n_work(self) -> int:
        """Bytes to be made or written, by which progress is measured."""

    def filled_by(self, target: Target, tensor: Tensor) -> Filling:
        """Say where the content of a tensor of a target comes from."""

    def peak_nbytes(self) -> int:
        """Return the most bytes that will be held at any moment."""

    def run(self, put: Put) -> Iterator[int]:
        """Make the content of all targets; yield the bytes done by each step.

        Under :func:`meta_magic.replaying.machine.real_torch`.
        """
