"""The memory of a trace's block at sizes and with choices, each recorded once."""

from collections.abc import Callable, Mapping
from types import MappingProxyType

from meta_magic.cost.samples import Sample, take_sample
from meta_magic.errors import TrialError
from meta_magic.trace.trace import Trace
from meta_magic.trials.named_sizes import list_sizes
from meta_magic.trials.trial import ask_trial, check_rerun, read_size

__all__ = ["Recordings"]


class Recordings:
    """Records a block again, at the sizes and with the choices that are asked for.

    Args:
        trace: The block as it was recorded.
        prepare: Called before each recording; what it raises passes through.

    Raises:
        TrialError: It failed.
    """

    def __init__(
        self, trace: Trace, prepare: Callable[[], None] = lambda: None
    ) -> None:
        if trace.error is not None:
            raise TrialError(f"it raised {trace.error}")
        self._trace = trace
        self._prepare = prepare
        self._current: dict[str, int] = {}
        self._samples: dict[tuple[frozenset[object], tuple[str, ...]], Sample] = {}

    def take(
        self,
        choices: tuple[str, ...] = (),
        sizes: Mapping[str, int] = MappingProxyType({}),
    ) -> Sample:
        """Return the memory of the block.

        Args:
            choices: What is chosen otherwise than the block does.
            sizes: Values that names have instead.

        Raises:
            TrialError: It fails then, or cannot be run again.
        """
        sizes = {n: size for n, size in sizes.items() if size != self.read_size(n)}
        key = frozenset(sizes.items()), choices
        if key not in self._samples:
            self._samples[key] = self._record(choices, sizes)
        return self._samples[key]

    def _record(self, choices: tuple[str, ...], sizes: Mapping[str, int]) -> Sample:
        if not sizes and not choices:
            return take_sample(self._trace)
        self._prepare()
        try:
            return ask_trial(
                self._trace, lambda again, _: take_sample(again), sizes, choices
            )
        except TrialError as error:
            at = ", ".join(f"{name}={size}" for name, size in sizes.items())
            raise TrialError(f"with {at}, {error}" if at else str(error)) from None

    def list_sizes(self) -> dict[str, int]:
        """Return the sizes that the text of the block names, without running it.

        Raises:
            TrialError: It cannot be run again.
        """
        return list_sizes(check_rerun(self._trace))

    def read_size(self, name: str) -> int:
        """Return what a name stood for when the block had run.

        Raises:
            TrialError: It is no positive integer.
        """
        if name not in self._current:
            self._prepare()
            self._current[name] = read_size(self._trace, name)
        return self._current[name]
