"""The memory of a trace's block at sizes and with choices, each recorded once.

The report asks for the same recordings again with each move of a slider.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from types import MappingProxyType
from typing import TypeAlias

from meta_magic.cost.memory_timeline import Sample, take_sample
from meta_magic.errors import TrialError
from meta_magic.trace.trace import Trace
from meta_magic.trials.blocks import (
    find_constants,
    is_variable,
    list_sizes,
    parse_block,
)
from meta_magic.trials.slices import Slice, join_slice
from meta_magic.trials.trial import ask_trials, check_rerun, read_size

SizeItems: TypeAlias = frozenset[tuple[str, int]]
"""Values that replace those of names."""


class Recordings:
    """Records a block again, and remembers the memory of each recording.

    ``prepare`` is called before each recording; its errors pass through.
    """

    def __init__(
        self, trace: Trace, prepare: Callable[[], None] = lambda: None
    ) -> None:
        if trace.error is not None:
            raise TrialError(f"it raised {trace.error}")
        self._trace = trace
        self._prepare = prepare
        self._current: dict[str, int] = {}
        self._samples: dict[tuple[bool, tuple[str, ...]], dict[SizeItems, Sample]] = {}

    def take(
        self,
        choices: tuple[str, ...] = (),
        sizes: Mapping[str, int] = MappingProxyType({}),
    ) -> Sample:
        """Return the memory of the block."""
        return self.take_all(choices, [sizes])[0]

    def take_all(
        self, choices: tuple[str, ...], sizes: Sequence[Mapping[str, int]]
    ) -> list[Sample]:
        """Return the memory of the block at several sizes, recorded all at once."""
        keys = [
            frozenset((n, size) for n, size in own.items() if size != self.read_size(n))
            for own in sizes
        ]
        trace = self.find_trace(*{name for own in sizes for name in own})
        known = self._samples.setdefault((trace is self._trace, choices), {})
        if not (known or choices) and trace is self._trace:
            known[frozenset()] = take_sample(trace)
        asked = keys if trace is self._trace else [frozenset(), *keys]
        todo = [key for key in dict.fromkeys(asked) if key not in known]
        if todo:
            known |= self._record(trace, choices, todo)
        return [known[key] for key in keys]

    def _record(
        self, trace: Trace, choices: tuple[str, ...], todo: Sequence[SizeItems]
    ) -> dict[SizeItems, Sample]:
        for _ in todo:
            self._prepare()
        sizes = [dict(key) for key in todo]
        answers = ask_trials(trace, lambda one, _: take_sample(one), sizes, choices)
        samples, errors = {}, []
        for key, sample in zip(todo, answers, strict=True):
            if isinstance(sample, TrialError):
                at = ", ".join(f"{name}={size}" for name, size in key)
                errors.append(TrialError(f"with {at}, {sample}") if at else sample)
            else:
                samples[key] = sample
        if errors:
            raise errors[0]
        is_other = trace is not self._trace and frozenset() in samples
        if (
            is_other
            and samples[frozenset()].live_nbytes != self.take(choices).live_nbytes
        ):
            raise TrialError("the cells before it do not make the same again")
        return samples

    @cached_property
    def joined(self) -> Slice | None:
        """The block with the cells and files that it rests on."""
        return join_slice(self._trace)

    def find_trace(self, *names: str) -> Trace:
        """Return the trace to run again if names vary: with the cells that set them."""
        joined = self.joined
        if joined is None:
            return self._trace
        is_before = not joined.names.isdisjoint(names)
        if not is_before:  # or a name stands for a number only in the code before
            rerun = check_rerun(self._trace)
            block = parse_block(rerun)
            is_before = not all(
                is_variable(rerun, block, name) or find_constants(block, name)
                for name in names
            )
        return replace(self._trace, rerun=joined.rerun) if is_before else self._trace

    def find_caveat(self, *names: str) -> str:
        """Return which variables keep their values while names vary; "" for none."""
        joined = self.joined
        is_alone = joined is None or joined.names.isdisjoint(names)
        return "" if joined is None or is_alone else joined.describe_limits(*names)

    def list_sizes(self) -> dict[str, int]:
        """Return the sizes that code names, the block's first, without running it."""
        own = list_sizes(check_rerun(self._trace))
        joined = self.joined
        return own | ({} if joined is None else list_sizes(joined.rerun))

    def read_size(self, name: str) -> int:
        """Return the integer that a name had as its value when the block had run."""
        if name not in self._current:
            trace = self.find_trace(name)
            self._current[name] = read_size(trace, name, self._prepare)
        return self._current[name]
