"""``init="empty"``: memory without content, and what writes into it to inherit."""

from collections.abc import Iterator, Sequence
from typing import ClassVar

from torch import Tensor

from meta_magic.errors import MaterializeError
from meta_magic.materializing.fills.protocol import Put, Task
from meta_magic.materializing.forecast import Forecast
from meta_magic.materializing.report import UNINITIALIZED
from meta_magic.materializing.targets import Target
from meta_magic.replaying.memory import allocate, make_view

__all__ = ["EmptyFill"]


class EmptyFill:
    """Leaves all targets uninitialized; a subclass may :meth:`write` them.

    Args:
        task: What is to be filled.
    """

    gives: ClassVar = "nothing; all is uninitialized memory"
    source: ClassVar = UNINITIALIZED
    """How the report calls what filled a tensor."""

    def __init__(self, task: Task) -> None:
        self.targets = task.targets
        self.n_work = sum(target.nbytes for target in task.targets)
        self.n_operators = 0

    def forecast(self) -> Forecast:
        """Return that nothing is replayed."""
        return Forecast()

    def peak_nbytes(self) -> int:
        """Return the bytes of all targets."""
        return self.n_work

    def run(self, put: Put) -> Iterator[int]:
        """Allocate and write all targets.

        Raises:
            MaterializeError: Torch refuses to write one, as it does for some dtypes.
        """
        for target in self.targets:
            storage = allocate(target.nbytes, target.device)
            for tensor in target.tensors:
                real = make_view(storage, target.geometry_of(tensor))
                try:
                    self.write(real)
                except RuntimeError as error:
                    raise MaterializeError(
                        f"cannot write {target.name!r}, {real.dtype} of shape "
                        f"{tuple(real.shape)}: {error}"
                    ) from error
            put(target, storage)
            yield target.nbytes

    def write(self, tensor: Tensor) -> None:
        """Write the content of a tensor, which is real, cast and laid out; nothing.

        Called for each tensor of the module that is on meta: tensors that share memory
        come one after the other, one that is tied comes once.
        """

    def finish(self) -> Sequence[str]:
        """Leave it at that."""
        return ()

    def filled_by(self, _target: Target, _tensor: Tensor, /) -> str:
        """Say what fills the target."""
        return self.source
