"""Whether a block fits a device, and the largest sizes with which it does.

``trace.fit("H100", vary={"batch": ...})`` answers how large the batch can be, without
the device. :func:`find_fitting` records the block at three batch sizes, interpolates
the bytes of each call, and records once more at the answer to confirm it. Where the
block runs other operators at other sizes, it searches by recording. Read
:func:`fit_trace` first.

:class:`Recordings` remembers each recording: the report asks for the same ones again
with each move of a slider.
"""

from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import gcd
from operator import attrgetter
from types import EllipsisType, MappingProxyType
from typing import Final, NamedTuple, TypeAlias

from meta_magic.cost.device_table import Device, find_device
from meta_magic.cost.memory_timeline import (
    Interpolation,
    Sample,
    interpolate,
    take_sample,
)
from meta_magic.errors import TrialError
from meta_magic.trace.trace import Trace
from meta_magic.trace.units import format_bytes
from meta_magic.trials.blocks import (
    find_constants,
    is_variable,
    list_sizes,
    move_spot,
    parse_block,
)
from meta_magic.trials.slices import Slice, join_slice
from meta_magic.trials.trial import ask_trials, check_rerun, read_size
from meta_magic.trials.trial_choices import count_parts, name_parts

SizeItems: TypeAlias = frozenset[tuple[str, int]]
"""Values that replace those of names."""


class Recordings:
    """Records a block again, and remembers the memory of each recording.

    ``prepare`` is called before each recording; its errors pass through. ``at`` has
    sizes that all recordings have instead of the block's own.
    """

    def __init__(
        self,
        trace: Trace,
        prepare: Callable[[], None] = lambda: None,
        at: Mapping[str, int] = MappingProxyType({}),
    ) -> None:
        if trace.error is not None:
            raise TrialError(f"it raised {trace.error}")
        self._trace = trace
        self._prepare = prepare
        self._at = at
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
        each = [{**self._at, **own} for own in sizes]
        keys = [
            frozenset((n, size) for n, size in one.items() if size != self._read_own(n))
            for one in each
        ]
        trace = self.find_trace(*{name for one in each for name in one})
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
        is_joined = self.joined is not None and trace is not self._trace
        n_above = self.joined.n_above if self.joined and is_joined else 0
        sizes = [{move_spot(name, n_above): n for name, n in key} for key in todo]
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
        sizes = own | ({} if joined is None else list_sizes(joined.rerun))
        return {name: self._at.get(name, size) for name, size in sizes.items()}

    def read_size(self, name: str) -> int:
        """Return the integer that a name has as its value when the block has run."""
        return self._at[name] if name in self._at else self._read_own(name)

    def _read_own(self, name: str) -> int:
        """Return the integer that a name had as its value when the block had run."""
        if name not in self._current:
            trace = self.find_trace(name)
            self._current[name] = read_size(trace, name, self._prepare)
        return self._current[name]


LIMIT: Final = 1 << 20
"""The largest size that is tried where no candidates are named."""

MAX_STEPS: Final = 1000
"""How many candidates are read to find their common divisor."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeFit:
    """How the peak grows with one size, the others unchanged.

    Attributes:
        name: The block's name for the size.
        current: Its value in the block.
        least: The smallest value that was asked about.
        largest: The largest value that fits; 0 if none does.
        recorded: (size, bytes at the peak) of the recordings that were made.
        interpolation: The bytes of each call at any size, if programs do not differ.
    """

    name: str
    current: int
    least: int
    largest: int
    recorded: tuple[tuple[int, int], ...]
    interpolation: Interpolation | None = field(default=None, repr=False, compare=False)

    @property
    def confirmed(self) -> bool:
        """Whether the block was recorded at the largest size, if any fits."""
        return not self.largest or self.largest in dict(self.recorded)

    @property
    def nbytes_per_unit(self) -> int | None:
        """Bytes by which the peak grows if the size grows by one.

        At the largest size that fits, or the least if none does; None where the program
        differs by size.
        """
        if self.interpolation is None:
            return None
        size, peak_nbytes = self.largest or self.least, self.interpolation.peak_nbytes
        return peak_nbytes(size + 1) - peak_nbytes(size)

    def peak_nbytes(self, size: int) -> int:
        """Return the most bytes that are live at once, at any size.

        Raises:
            TrialError: The program differs by size, and this size was not recorded.
        """
        known = dict(self.recorded)
        if size in known:
            return known[size]
        if self.interpolation is None:
            raise TrialError(f"{self.name}={size} was not recorded")
        return self.interpolation.peak_nbytes(size)


@dataclass(frozen=True, slots=True, kw_only=True)
class Remedy:
    """Choices that were tried because a block does not fit.

    Attributes:
        choices: The choices, without those that the caller made.
        peak_nbytes: Most bytes that are live at once with them.
    """

    choices: tuple[str, ...]
    peak_nbytes: int

    def __str__(self) -> str:
        return f"{format_bytes(self.peak_nbytes)} with {', '.join(self.choices)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """Whether a block fits a device.

    Attributes:
        device: The name of the device.
        nbytes: Bytes of its memory.
        place: The device of the block that is compared with ``device``.
        peak_nbytes: Most bytes that are live there at once, as recorded.
        sizes: By name, how that grows with each size that was asked about.
        choices: Choices that the caller made.
        caveat: Which variables of earlier cells are used as they are; "" for none.
        remedies: Other choices that were tried where nothing fits: those that are
            enough, or that need least; empty unless they were asked for.
    """

    device: str
    nbytes: int
    place: str
    peak_nbytes: int
    sizes: Mapping[str, SizeFit]
    choices: tuple[str, ...] = ()
    caveat: str = ""
    remedies: tuple[Remedy, ...] = ()

    @property
    def fits(self) -> bool:
        """Whether the block fits as recorded."""
        return self.peak_nbytes <= self.nbytes

    @property
    def largest(self) -> dict[str, int]:
        """By name the largest size that fits, the others unchanged."""
        return {name: size.largest for name, size in self.sizes.items()}

    @property
    def confirmed(self) -> bool:
        """Whether the block was recorded at each answer."""
        return all(size.confirmed for size in self.sizes.values())

    def __str__(self) -> str:
        verb = "fits" if self.fits else "does not fit"
        peak, room = format_bytes(self.peak_nbytes), format_bytes(self.nbytes)
        chosen = f" with {', '.join(self.choices)}" if self.choices else ""
        lines = [f"{peak} at the peak{chosen} {verb} {self.device} ({room})"]
        for size in self.sizes.values():
            at = ", ".join(str(n) for n, _ in size.recorded)
            how = "interpolated" if size.interpolation else "searched"
            how += f" from recordings at {at}" if size.confirmed else ", not confirmed"
            lines.append(
                f"  {size.name} = {size.current}: {_format_largest(size)} ({how})"
            )
        if self.caveat:
            lines.append(f"  {self.caveat}")
        if self.remedies:
            enough = self.remedies[0].peak_nbytes <= self.nbytes
            tried = ", or ".join(str(remedy) for remedy in self.remedies)
            lines.append(f"  it would fit: {tried}" if enough else f"  still {tried}")
        return "\n".join(lines)


def _format_largest(size: SizeFit) -> str:
    """Return the text that says which size fits, and what one more needs."""
    if size.largest:
        text = f"at most {size.largest}"
    else:
        least = format_bytes(size.peak_nbytes(size.least))
        text = f"none fits, {size.least} takes {least}"
    one_more = size.nbytes_per_unit
    return (
        text if one_more is None else f"{text}, {format_bytes(one_more)} for one more"
    )


_PEAK = attrgetter("peak_nbytes")

PeakWith: TypeAlias = Callable[[tuple[str, ...]], int]
"""Records the block with choices, and returns the bytes at the peak."""

ALTERNATIVES: Final = (
    ("checkpointing",),
    ("autocast", "bfloat16"),
    ("fused", "8-bit", "paged 8-bit", "sgd"),
)
"""Choices that save memory; of each row one at a time."""


def _find_remedies(recordings: Recordings, fit: Fit) -> tuple[Remedy, ...]:
    """Return choices with which a block fits, if it fits at no size that was tried.

    Sizes that may vary have their smallest values.
    """
    least = {name: one.least for name, one in fit.sizes.items() if not one.largest}
    if not least and (fit.sizes or fit.fits):
        return ()

    def peak_with(choices: tuple[str, ...]) -> int:
        return recordings.take(fit.choices + choices, least).peak_nbytes

    return try_alternatives(peak_with, fit.nbytes, fit.choices)


def try_alternatives(
    peak_with: PeakWith, nbytes: int, chosen: Collection[str]
) -> tuple[Remedy, ...]:
    """Return choices with which a block fits, least bytes first.

    Return each choice that is enough by itself; or if none is, one combination: enough,
    or what needs least.
    """
    tried: list[list[Remedy]] = []
    for row in ALTERNATIVES:
        tried.append([])
        for name in () if {*row} & {*chosen} else row:
            with suppress(TrialError):  # a choice that cannot be made
                tried[-1].append(
                    Remedy(choices=(name,), peak_nbytes=peak_with((name,)))
                )
    enough = [one for row in tried for one in row if one.peak_nbytes <= nbytes]
    if not enough:
        best = [min(row, key=_PEAK) for row in tried if row]
        best.sort(key=_PEAK)
        enough = [_combine(peak_with, nbytes, best)] if best else []
    return tuple(sorted(enough, key=_PEAK))


def _combine(peak_with: PeakWith, nbytes: int, best: Sequence[Remedy]) -> Remedy:
    """Return the fewest choices that are enough together, or all that help."""
    found = best[0]
    for one in best[1:]:
        choices = found.choices + one.choices
        try:
            more = Remedy(choices=choices, peak_nbytes=peak_with(choices))
        except TrialError:  # one needs what another takes away
            continue
        found = min(found, more, key=_PEAK)
        if found.peak_nbytes <= nbytes:
            break
    return found


Candidates: TypeAlias = Sequence[int] | EllipsisType | None
"""The values that a name may have; None or ``...`` for all from 1 on."""


class Search(NamedTuple):
    """A search for the largest size that fits.

    Attributes:
        candidates: The values it may have, rising.
    """

    name: str
    candidates: Sequence[int]
    nbytes: int
    record: Callable[[Sequence[int]], Sequence[Sample]]
    recorded: dict[int, Sample]

    def peak_nbytes(self, size: int) -> int:
        """Return the bytes at the peak of a recording at a size."""
        return self.sample_all([size])[0].peak_nbytes

    def sample_all(self, sizes: Sequence[int]) -> list[Sample]:
        """Return the memory of the block at sizes; each size is recorded once."""
        todo = [size for size in sizes if size not in self.recorded]
        self.recorded.update(zip(todo, self.record(todo), strict=True))
        return [self.recorded[size] for size in sizes]

    def find_largest(self, peak_nbytes: Callable[[int], int], near: int) -> int:
        """Return the largest candidate whose peak fits, or 0.

        A larger size is assumed to need more. The search begins near a size.
        """
        low, high, width = -1, len(self.candidates), 1  # low fits, and high does not
        at = bisect_left(self.candidates, near)
        while high - low > 1:
            at = min(max(at, low + 1), high - 1)
            if peak_nbytes(self.candidates[at]) <= self.nbytes:
                low, at = at, at + width
            else:
                high, at = at, at - width
            width *= 2
            if low >= 0 and high < len(self.candidates):  # in between, then
                at = (low + high) // 2
        return self.candidates[low] if low >= 0 else 0


def fit_trace(
    trace: Trace,
    device: str,
    vary: Mapping[str, Candidates] = MappingProxyType({}),
    choices: Sequence[str] = (),
    *,
    suggest: bool = False,
) -> Fit:
    """Return whether a block fits a device, and up to which sizes: ``Trace.fit``."""
    found, chosen = find_sized_device(device), name_parts(choices, vary)
    recordings = Recordings(trace)
    sample = recordings.take(chosen)
    sizes = {
        name: find_fitting(recordings, name, found.nbytes, [candidates], chosen)
        for name, candidates in vary.items()
    }
    fit = Fit(
        device=found.name,
        nbytes=found.nbytes,
        place=sample.device,
        peak_nbytes=sample.peak_nbytes,
        sizes=sizes,
        choices=chosen,
        caveat=recordings.find_caveat(*vary),
    )
    return replace(fit, remedies=_find_remedies(recordings, fit)) if suggest else fit


def find_sized_device(name: str) -> Device:
    """Return a device that has memory of its own."""
    device = find_device(name)
    if not device.nbytes:
        raise TrialError(f"the memory of {device.title} varies: name another device")
    return device


def find_fitting(
    recordings: Recordings,
    name: str,
    nbytes: int,
    tried: Iterable[Candidates] = (...,),
    choices: tuple[str, ...] = (),
) -> SizeFit:
    """Return the largest fitting size, by the first of ``tried`` that interpolates."""

    def record(sizes: Sequence[int]) -> Sequence[Sample]:
        return recordings.take_all(choices, [{name: size} for size in sizes])

    current = recordings.read_size(name)
    sample, step = record([current])[0], count_parts(choices, name)
    searches = [
        Search(
            name, _list_candidates(candidates, step), nbytes, record, {current: sample}
        )
        for candidates in tried
    ]
    for search in searches:
        largest, found = _interpolate_largest(search, current)
        if found is not None:
            break
    else:
        near = largest or current
        largest = search.find_largest(search.peak_nbytes, near=near)
    recorded = sorted(search.recorded.items())
    return SizeFit(
        name=name,
        current=current,
        least=search.candidates[0],
        largest=largest,
        recorded=tuple((size, sample.peak_nbytes) for size, sample in recorded),
        interpolation=found,
    )


def _list_candidates(candidates: Candidates, step: int) -> Sequence[int]:
    """Return the sizes to try, rising: multiples of a step."""
    if candidates is None or candidates is ...:
        return range(step, LIMIT + 1, step)
    is_size = all(type(size) is int and size > 0 for size in candidates)
    if not is_size or not candidates:
        raise TrialError(f"{candidates!r} are no sizes: use positive integers")
    multiples = sorted(size for size in {*candidates} if size % step == 0)
    if not multiples:
        raise TrialError(f"none of {candidates!r} is split into {step} parts")
    return multiples


def _interpolate_largest(
    search: Search, current: int
) -> tuple[int, Interpolation | None]:
    """Return the largest size that fits, and the bytes at all sizes.

    The bytes are None where programs differ, or where a recording at the answer does
    not confirm it, as some kernels round sizes up. The size is a guess then.
    """
    largest = current
    for sizes in _list_samples(search.candidates, current):
        found = _interpolate_samples(search, sizes)
        if found is None:
            continue
        largest = search.find_largest(found.peak_nbytes, near=current)
        size = largest or search.candidates[0]
        if search.peak_nbytes(size) == found.peak_nbytes(size):
            return largest, found
    return largest, None


def _list_samples(candidates: Sequence[int], current: int) -> Iterator[list[int]]:
    """Yield triples of sizes to interpolate from.

    First from two steps on, as size 1 is special to torch; then the own multiples.
    """
    step = gcd(*candidates[:MAX_STEPS])
    yield [2 * step, 3 * step, current if current > 3 * step else 4 * step]
    if current > 1:
        yield [current, 2 * current, 3 * current]


def _interpolate_samples(search: Search, sizes: Sequence[int]) -> Interpolation | None:
    """Return the bytes at all sizes, if the block is the same program at some."""
    try:
        samples = search.sample_all(sizes)
    except TrialError:  # sizes that the block does not take
        return None
    if len({sample.program for sample in samples}) > 1:
        return None
    return interpolate(sizes, [sample.live_nbytes for sample in samples])
