"""Whether a block fits a device, and the largest sizes at which it does."""

from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from math import gcd
from types import EllipsisType, MappingProxyType
from typing import Final, NamedTuple, TypeAlias

from meta_magic.cost.device_table import find_device
from meta_magic.cost.memory_samples import Interpolation, Sample, interpolate
from meta_magic.errors import TrialError
from meta_magic.trace.trace import Trace
from meta_magic.trace.units import format_bytes
from meta_magic.trials.accumulation import count_parts, name_parts
from meta_magic.trials.recordings import Recordings


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeFit:
    """How the peak grows with one size, the others as they are.

    Attributes:
        name: What the size is called in the block.
        current: Its value there.
        least: The smallest one that was asked about.
        largest: The largest one that fits; 0 if none does.
        recorded: (size, bytes at the peak) of all recordings that it stands on.
        interpolation: The bytes of each call at any size; None where programs differ
            by size, so that each size was recorded that is spoken of.
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
        """Bytes that one more adds to the peak, at the largest size that fits.

        At the least one if none does; None where programs differ by size.
        """
        if self.interpolation is None:
            return None
        size, peak_nbytes = self.largest or self.least, self.interpolation.peak_nbytes
        return peak_nbytes(size + 1) - peak_nbytes(size)

    def peak_nbytes(self, size: int) -> int:
        """Return the most bytes that live at once, at any size.

        Raises:
            TrialError: Programs differ by size, and this one was not recorded.
        """
        known = dict(self.recorded)
        if size in known:
            return known[size]
        if self.interpolation is None:
            raise TrialError(f"{self.name}={size} was not recorded")
        return self.interpolation.peak_nbytes(size)


@dataclass(frozen=True, slots=True, kw_only=True)
class Remedy:
    """Choices under which a block was recorded that does not fit without.

    Attributes:
        choices: They, beside those made anyway.
        peak_nbytes: Most bytes that live at once then.
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
        place: Which of the block's devices it stands for.
        peak_nbytes: Most bytes that live there at once, as recorded.
        sizes: How that grows with each size that was asked for, by its name.
        choices: What was chosen otherwise than the block does.
        remedies: What else was tried where nothing fits: choices that are enough, or
            that need least; none unless it was asked for.
    """

    device: str
    nbytes: int
    place: str
    peak_nbytes: int
    sizes: Mapping[str, SizeFit]
    choices: tuple[str, ...] = ()
    remedies: tuple[Remedy, ...] = ()

    @property
    def fits(self) -> bool:
        """Whether it fits as recorded."""
        return self.peak_nbytes <= self.nbytes

    @property
    def largest(self) -> dict[str, int]:
        """By name the largest size that fits, the others as they are."""
        return {name: size.largest for name, size in self.sizes.items()}

    @property
    def confirmed(self) -> bool:
        """Whether each answer was recorded."""
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
            lines.append(f"  {size.name} = {size.current}: {say_largest(size)} ({how})")
        if self.remedies:
            enough = self.remedies[0].peak_nbytes <= self.nbytes
            tried = ", or ".join(str(remedy) for remedy in self.remedies)
            lines.append(f"  it would fit: {tried}" if enough else f"  still {tried}")
        return "\n".join(lines)


def say_largest(size: SizeFit) -> str:
    """Return in words which size fits, and what one more needs."""
    if size.largest:
        text = f"at most {size.largest}"
    else:
        least = format_bytes(size.peak_nbytes(size.least))
        text = f"none fits, {size.least} takes {least}"
    one_more = size.nbytes_per_unit
    return (
        text if one_more is None else f"{text}, {format_bytes(one_more)} for one more"
    )


PeakWith: TypeAlias = Callable[[tuple[str, ...]], int]
"""Returns the bytes at the peak with choices, as recorded."""

ALTERNATIVES: Final = (
    ("checkpointing",),
    ("autocast", "bfloat16"),
    ("fused", "8-bit", "paged 8-bit", "sgd"),
)
"""Choices that save memory; of each row one at a time."""


def find_remedies(recordings: Recordings, fit: Fit) -> tuple[Remedy, ...]:
    """Return what would make a block fit that does not, at any size that was tried.

    It is to do so at the least sizes, the others being as they are.
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
    """Return choices by which a block fits, least bytes first.

    Args:
        peak_with: See there.
        nbytes: What there is room for.
        chosen: What is chosen anyway.

    Returns:
        Each choice that is enough by itself; if none is, several that are together, or
        that need least together.
    """
    rows = [row for row in ALTERNATIVES if not {*row} & {*chosen}]
    tried = [list(try_each(peak_with, row)) for row in rows]
    enough = [one for row in tried for one in row if one.peak_nbytes <= nbytes]
    if not enough:
        best = [min(row, key=need_of) for row in tried if row]
        best.sort(key=need_of)
        enough = [combine(peak_with, nbytes, best)] if best else []
    return tuple(sorted(enough, key=need_of))


def try_each(peak_with: PeakWith, names: Sequence[str]) -> Iterator[Remedy]:
    """Yield what each of some choices brings; of one that cannot be made nothing."""
    for name in names:
        try:
            yield Remedy(choices=(name,), peak_nbytes=peak_with((name,)))
        except TrialError:
            continue


def combine(peak_with: PeakWith, nbytes: int, best: Sequence[Remedy]) -> Remedy:
    """Return choices that are enough together, as few as are, or all that help."""
    found = best[0]
    for one in best[1:]:
        choices = found.choices + one.choices
        try:
            more = Remedy(choices=choices, peak_nbytes=peak_with(choices))
        except TrialError:  # one needs what another takes away
            continue
        found = min(found, more, key=need_of)
        if found.peak_nbytes <= nbytes:
            break
    return found


def need_of(remedy: Remedy) -> int:
    """Return the bytes that it needs."""
    return remedy.peak_nbytes


Candidates: TypeAlias = Sequence[int] | EllipsisType | None
"""The values that a name may have; all from 1 on, if they are not said."""

LIMIT: Final = 1 << 20
"""The largest size that is tried where candidates are not said."""

MAX_STEPS: Final = 1000
"""How many candidates are looked at for what they are multiples of."""


class Search(NamedTuple):
    """A search for the largest size.

    Attributes:
        name: What it is called.
        candidates: What it may be, rising.
        nbytes: What there is room for.
        record: Returns the memory of the block at each of some sizes.
        recorded: What it returned, by size.
    """

    name: str
    candidates: Sequence[int]
    nbytes: int
    record: Callable[[Sequence[int]], Sequence[Sample]]
    recorded: dict[int, Sample]

    def sample(self, size: int) -> Sample:
        """Return the memory of the block at a size."""
        return self.sample_all([size])[0]

    def sample_all(self, sizes: Sequence[int]) -> list[Sample]:
        """Return the memory of the block at sizes, each recorded once."""
        todo = [size for size in sizes if size not in self.recorded]
        self.recorded.update(zip(todo, self.record(todo), strict=True))
        return [self.recorded[size] for size in sizes]

    def find_largest(self, peak_nbytes: Callable[[int], int], near: int) -> int:
        """Return the largest candidate whose peak there is room for, or 0.

        It is taken that more needs more. Candidates near one are asked first.
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
    """Return whether a trace's block fits a device, and up to which sizes.

    Args:
        trace: The recording.
        device: A device that is known by name.
        vary: Names of sizes in the block, and what each may be.
        choices: What is chosen otherwise than the block does.
        suggest: Whether to try what would make it fit, where nothing does.

    Raises:
        UnknownDeviceError: No such device is known; it names all that are.
        TrialError: The block failed, cannot be run again, or knows no such size; or
            the device has no memory of its own.
    """
    found, chosen = find_device(device), name_parts(choices, vary)
    if not found.nbytes:
        raise TrialError(f"how much memory {found.title} has varies: name another")
    recordings = Recordings(trace)
    sample = recordings.take(chosen)
    sizes = {
        name: find_fitting(recordings, name, found.nbytes, [candidates], chosen)
        for name, candidates in vary.items()
    }
    fit = Fit(
        device=found.name,
        nbytes=found.nbytes,
        place=sample.place,
        peak_nbytes=sample.peak_nbytes,
        sizes=sizes,
        choices=chosen,
    )
    return replace(fit, remedies=find_remedies(recordings, fit)) if suggest else fit


def find_fitting(
    recordings: Recordings,
    name: str,
    nbytes: int,
    tried: Iterable[Candidates] = (...,),
    choices: tuple[str, ...] = (),
) -> SizeFit:
    """Return the largest value of a name with which a block takes so many bytes.

    Args:
        recordings: Of the block.
        name: What the size is called.
        nbytes: What there is room for.
        tried: What it may be: the first where the peak can be interpolated counts.
        choices: What is chosen otherwise than the block does.

    Raises:
        TrialError: The block cannot be run again, or knows no such size.
    """

    def record(sizes: Sequence[int]) -> Sequence[Sample]:
        return recordings.take_all(choices, [{name: size} for size in sizes])

    current = recordings.read_size(name)
    sample, step = recordings.take(choices), count_parts(choices, name)
    searches = [
        Search(
            name, list_candidates(candidates, step), nbytes, record, {current: sample}
        )
        for candidates in tried
    ]
    for search in searches:
        largest, found = interpolate_largest(search, current)
        if found is not None:
            break
    else:
        near = largest or current
        largest = search.find_largest(partial(peak_of, search), near=near)
    return describe_size(search, current, largest, found)


def describe_size(
    search: Search, current: int, largest: int, found: Interpolation | None
) -> SizeFit:
    """Return what a search found, and the recordings that it stands on."""
    recorded = sorted(search.recorded.items())
    return SizeFit(
        name=search.name,
        current=current,
        least=search.candidates[0],
        largest=largest,
        recorded=tuple((size, sample.peak_nbytes) for size, sample in recorded),
        interpolation=found,
    )


def list_candidates(candidates: Candidates, step: int) -> Sequence[int]:
    """Return the sizes that may be tried, rising: multiples of one.

    Raises:
        TrialError: One is no positive integer, or there is none.
    """
    if candidates is None or candidates is ...:
        return range(step, LIMIT + 1, step)
    is_size = all(type(size) is int and size > 0 for size in candidates)
    if not is_size or not candidates:
        raise TrialError(f"{candidates!r} are no sizes: these are positive integers")
    multiples = sorted(size for size in {*candidates} if size % step == 0)
    if not multiples:
        raise TrialError(f"none of {candidates!r} is split into {step} parts")
    return multiples


def interpolate_largest(
    search: Search, current: int
) -> tuple[int, Interpolation | None]:
    """Return the largest size that fits, and the bytes at all sizes.

    Returns:
        None for the bytes where programs differ, or a recording is another: some
        kernels take sizes rounded up. The size is a guess then.
    """
    largest = current
    for sizes in list_samples(search.candidates, current):
        found = interpolate_samples(search, sizes)
        if found is None:
            continue
        largest = search.find_largest(found.peak_nbytes, near=current)
        size = largest or search.candidates[0]
        if peak_of(search, size) == found.peak_nbytes(size):
            return largest, found
    return largest, None


def list_samples(candidates: Sequence[int], current: int) -> Iterator[list[int]]:
    """Yield sizes to interpolate from.

    From 2 up, in steps by which candidates lie apart: at 1 torch runs other operators.
    Then multiples of the one that the block has.
    """
    step = gcd(*candidates[:MAX_STEPS])
    yield [2 * step, 3 * step, current if current > 3 * step else 4 * step]
    if current > 1:
        yield [current, 2 * current, 3 * current]


def interpolate_samples(search: Search, sizes: Sequence[int]) -> Interpolation | None:
    """Return the bytes at all sizes, if at some of them the block is one program."""
    try:
        samples = search.sample_all(sizes)
    except TrialError:  # sizes that the block does not take
        return None
    if len({sample.program for sample in samples}) > 1:
        return None
    return interpolate(sizes, [sample.live_nbytes for sample in samples])


def peak_of(search: Search, size: int) -> int:
    """Return the bytes at the peak of a recording."""
    return search.sample(size).peak_nbytes
