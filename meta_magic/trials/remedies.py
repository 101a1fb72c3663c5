"""What would make a block fit that does not: choices, each recorded."""

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Final, TypeAlias

from meta_magic.errors import TrialError
from meta_magic.trials.fit_records import Fit, Remedy
from meta_magic.trials.recordings import Recordings

__all__ = ["find_remedies"]

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
        best = [min(row, key=peak_of) for row in tried if row]
        best.sort(key=peak_of)
        enough = [combine(peak_with, nbytes, best)] if best else []
    return tuple(sorted(enough, key=peak_of))


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
        found = min(found, more, key=peak_of)
        if found.peak_nbytes <= nbytes:
            break
    return found


def peak_of(remedy: Remedy) -> int:
    """Return the bytes that it needs."""
    return remedy.peak_nbytes
