"""How the memory of a block grows with a size, in numbers that the report draws.

The panel "does it fit?" draws a curve of bytes by batch size while the user drags a
slider; :func:`find_growth` gives it the few numbers that the browser computes it from.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from meta_magic.errors import TrialError
from meta_magic.trials.fit import LIMIT, find_fitting
from meta_magic.trials.recordings import Recordings

ALIGNED: Final = 64
"""Kernels round sizes up to no larger multiple than this."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Growth:
    """How the bytes at the peak grow with one size, the others unchanged.

    Attributes:
        name: The block's name for the size.
        current: Its value there; 0 if nothing could be recorded.
        choices: Changes of the block.
        nbytes: The memory in which the largest size should fit.
        largest: The largest size that fits, as recorded; 0 if none does.
        recorded: (size, bytes at the peak) of the recordings that were made.
        sizes: The recorded sizes from which others are interpolated; () where programs
            differ by size.
        step: Interpolated sizes are multiples of it.
        highest: The bytes live at ``sizes``, for each call that is the peak at some
            size.
        reason: Why the growth is not known; None if it is.
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
    """Yield no choice, each choice by itself, and all of them."""
    yield ()
    for choice in choices:
        yield (choice,)
    if len(choices) > 1:
        yield tuple(choices)


def find_growth(
    recordings: Recordings, name: str, nbytes: int, choices: tuple[str, ...] = ()
) -> Growth:
    """Return how the peak of a block grows with a size.

    All sizes are tried, then multiples of the power of two in the current size: kernels
    that round sizes up leave these as they are.
    """
    try:
        current = recordings.read_size(name)
        steps = sorted({1, min(current & -current, ALIGNED)})
        tried = [range(n, LIMIT + 1, n) for n in steps]
        found = find_fitting(recordings, name, nbytes, tried, choices)
    except TrialError as error:
        return Growth(name=name, choices=choices, nbytes=nbytes, reason=str(error))
    known = found.interpolation
    calls = () if known is None else known.list_highest(found.least)
    live = () if known is None else known.live
    return Growth(
        name=name,
        choices=choices,
        nbytes=nbytes,
        current=found.current,
        largest=found.largest,
        recorded=found.recorded,
        sizes=() if known is None else known.sizes,
        step=found.least,
        highest=tuple(tuple(int(at[call]) for at in live) for call in calls),
    )


def find_stretches(
    recordings: Recordings, growth: Growth
) -> tuple[tuple[int, ...], ...]:
    """Return the bytes of each stretch of the recorded program at a growth's sizes.

    Returns:
        A row for each stretch, in the order of
        ``memory_samples.Sample``; () where the program at these sizes
        differs from the recorded one.
    """
    samples = [recordings.take(sizes={growth.name: size}) for size in growth.sizes]
    programs = {sample.program for sample in (*samples, recordings.take())}
    if len(programs) > 1:
        return ()
    return tuple(zip(*(sample.stretches for sample in samples), strict=True))
