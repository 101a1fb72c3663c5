"""How the memory of a block grows with a size, in numbers that can be drawn."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from meta_magic.errors import TrialError
from meta_magic.trials.fit import LIMIT, SizeFit, find_fitting
from meta_magic.trials.recordings import Recordings

ALIGNED: Final = 64
"""To no larger multiple is a size rounded up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Growth:
    """How the bytes at the peak grow with one size, the others as they are.

    Attributes:
        name: What the size is called in the block.
        current: Its value there; 0 if nothing could be recorded.
        choices: What was chosen otherwise than the block does.
        nbytes: The memory that the largest size was looked for.
        largest: The largest size with which it is enough, as recorded; 0 if none is.
        recorded: (size, bytes at the peak) of all recordings that it stands on.
        sizes: Of them those from which all others follow; () where programs differ.
        step: Of what sizes are to be multiples for that.
        highest: For calls of which one is the highest, at each size, the bytes that
            live after it at ``sizes``.
        reason: Why it is not known; None if it is.
    """

    name: str
    choices: tuple[str, ...]
    nbytes: int
    current: int = 0
    largest: int = 0
    recorded: tuple[tuple[int, int], ...] = ()
    sizes: tuple[int, ...] = ()
    step: int = 1
    highest: tuple[tuple[int, ...], ...] = ()
    reason: str | None = None


def combine(choices: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """Yield no choice, each by itself, and all of them."""
    yield ()
    for choice in choices:
        yield (choice,)
    if len(choices) > 1:
        yield tuple(choices)


def find_growth(
    recordings: Recordings, name: str, nbytes: int, choices: tuple[str, ...] = ()
) -> Growth:
    """Return how the peak of a block grows with a size.

    Args:
        recordings: Of the block.
        name: What the size is called.
        nbytes: The memory that it is to fit.
        choices: What is chosen otherwise than the block does.
    """
    try:
        tried = list_multiples(recordings.read_size(name))
        found = find_fitting(recordings, name, nbytes, tried, choices)
    except TrialError as error:
        return Growth(name=name, choices=choices, nbytes=nbytes, reason=str(error))
    sizes, highest = read_highest(found)
    return Growth(
        name=name,
        choices=choices,
        nbytes=nbytes,
        current=found.current,
        largest=found.largest,
        recorded=found.recorded,
        sizes=sizes,
        step=found.least,
        highest=highest,
    )


def list_multiples(current: int) -> list[Sequence[int]]:
    """Return all sizes, and multiples of a power of two, where a size is one of it.

    Kernels that take sizes rounded up take such as they are.
    """
    step = min(current & -current, ALIGNED)
    return [range(n, LIMIT + 1, n) for n in sorted({1, step})]


def read_highest(found: SizeFit) -> tuple[tuple[int, ...], tuple[tuple[int, ...], ...]]:
    """Return the sizes that others follow from, and the highest calls there."""
    known = found.interpolation
    if known is None:
        return (), ()
    calls = known.list_highest(found.least)
    return known.sizes, tuple(
        tuple(int(live[call]) for live in known.live) for call in calls
    )


def find_stretches(
    recordings: Recordings, growth: Growth
) -> tuple[tuple[int, ...], ...]:
    """Return the bytes of each stretch of the recorded program at a growth's sizes.

    Returns:
        A row for each stretch, as ``memory_samples.Sample`` orders them;
        () where the program is another at these sizes than as it was recorded.
    """
    samples = [recordings.take(sizes={growth.name: size}) for size in growth.sizes]
    programs = {sample.program for sample in (*samples, recordings.take())}
    if len(programs) > 1:
        return ()
    return tuple(zip(*(sample.stretches for sample in samples), strict=True))
