"""Two fillings as one: what ``init=`` fills, and what is replayed beside it."""

from collections.abc import Iterator, Sequence

from torch import Tensor

from meta_magic.materializing.fills.protocol import Fill, Put
from meta_magic.materializing.forecast import Forecast
from meta_magic.materializing.targets import Target

__all__ = ["JoinedFill"]


class JoinedFill:
    """Fills what one filling does, then what another one does.

    Args:
        first: The one that the user asked for.
        second: A replay of what else is used with the module.
    """

    def __init__(self, first: Fill, second: Fill) -> None:
        self._fills = first, second
        self.targets = [*first.targets, *second.targets]
        self._of_second = {*second.targets}

    @property
    def n_work(self) -> int:
        """What there is to do for both."""
        return sum(fill.n_work for fill in self._fills)

    @property
    def n_operators(self) -> int:
        """Recorded calls that run again for both."""
        return sum(fill.n_operators for fill in self._fills)

    def forecast(self) -> Forecast:
        """Return what will be replayed for both."""
        first, second = (fill.forecast() for fill in self._fills)
        return first.join(second)

    def peak_nbytes(self) -> int:
        """Return the most bytes that will be held at any moment."""
        first, second = self._fills
        made = sum(target.nbytes for target in first.targets)
        return max(first.peak_nbytes(), made + second.peak_nbytes())

    def run(self, put: Put) -> Iterator[int]:
        """Fill all targets."""
        for fill in self._fills:
            yield from fill.run(put)

    def finish(self) -> Sequence[str]:
        """Finish both."""
        return [note for fill in self._fills for note in fill.finish()]

    def filled_by(self, target: Target, tensor: Tensor, /) -> str:
        """Say where the content of a tensor came from."""
        return self._fills[target in self._of_second].filled_by(target, tensor)
