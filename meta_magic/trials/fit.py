"""Whether a block fits a device, and the largest sizes at which it does."""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from math import gcd
from types import EllipsisType, MappingProxyType
from typing import Final, NamedTuple, TypeAlias

from meta_magic.cost.device_table import find_device
from meta_magic.cost.memory_samples import Interpolation, Sample, interpolate
from meta_magic.errors import TrialError
from meta_magic.trace.trace import Trace
from meta_magic.trials.accumulation import count_parts, name_parts
from meta_magic.trials.fit_records import Fit, SizeFit
from meta_magic.trials.recordings import Recordings
from meta_magic.trials.remedies import find_remedies

__all__ = ["Candidates", "Fit", "SizeFit", "find_fitting", "fit_trace"]

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
