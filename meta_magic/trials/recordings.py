"""The memory of a trace's block at sizes and with choices, each recorded once.

The report asks for the same recordings again with each move of a slider.
"""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import TypeAlias

from meta_magic.cost.memory_samples import Sample, take_sample
from meta_magic.errors import TrialError
from meta_magic.trace.trace import Trace
from meta_magic.trials.blocks import list_sizes
from meta_magic.trials.trial import ask_trials, check_rerun, read_size

Sizes: TypeAlias = frozenset[tuple[str, int]]
"""Values that replace those of names."""


class Recordings:
    """Records a block again, and remembers the memory of each recording.

    Args:
        trace: The block as it was recorded.
        prepare: Is called before each recording; its errors pass through.

    Raises:
        TrialError: The block failed.
    """

    def __init__(
        self, trace: Trace, prepare: Callable[[], None] = lambda: None
    ) -> None:
        if trace.error is not None:
            raise TrialError(f"it raised {trace.error}")
        self._trace = trace
        self._prepare = prepare
        self._current: dict[str, int] = {}
        self._samples: dict[tuple[Sizes, tuple[str, ...]], Sample] = {}

    def take(
        self,
        choices: tuple[str, ...] = (),
        sizes: Mapping[str, int] = MappingProxyType({}),
    ) -> Sample:
        """Return the memory of the block.

        Args:
            choices: Changes of the block.
            sizes: Values that replace those of names.

        Raises:
            TrialError: The block fails with them, or cannot run again.
        """
        return self.take_all(choices, [sizes])[0]

    def take_all(
        self, choices: tuple[str, ...], sizes: Sequence[Mapping[str, int]]
    ) -> list[Sample]:
        """Return the memory of the block at several sizes, recorded all at once.

        Raises:
            TrialError: The block fails at one of them, or cannot run again.
        """
        keys = [
            frozenset((n, size) for n, size in own.items() if size != self.read_size(n))
            for own in sizes
        ]
        todo = [
            key for key in dict.fromkeys(keys) if (key, choices) not in self._samples
        ]
        if frozenset() in todo and not choices:
            todo.remove(frozenset())
            self._samples[frozenset(), ()] = take_sample(self._trace)
        if todo:
            self._record(choices, todo)
        return [self._samples[key, choices] for key in keys]

    def _record(self, choices: tuple[str, ...], todo: Sequence[Sizes]) -> None:
        for _ in todo:
            self._prepare()
        sizes = [dict(key) for key in todo]
        answers = ask_trials(self._trace, _ask_sample, sizes, choices)
        errors = []
        for key, sample in zip(todo, answers, strict=True):
            if isinstance(sample, TrialError):
                at = ", ".join(f"{name}={size}" for name, size in key)
                errors.append(TrialError(f"with {at}, {sample}") if at else sample)
            else:
                self._samples[key, choices] = sample
        if errors:
            raise errors[0]

    def list_sizes(self) -> dict[str, int]:
        """Return the sizes that the block's text names, without running it.

        Raises:
            TrialError: The block cannot run again.
        """
        return list_sizes(check_rerun(self._trace))

    def read_size(self, name: str) -> int:
        """Return the integer that a name had as its value when the block had run.

        Raises:
            TrialError: The name's value is no positive integer.
        """
        if name not in self._current:
            self._current[name] = read_size(self._trace, name, self._prepare)
        return self._current[name]


def _ask_sample(again: Trace, _: Mapping[str, object]) -> Sample:
    return take_sample(again)
