"""The bytes that live after each call at sizes that were not recorded.

Where a program makes the same calls at every size, and its storages live equally long,
the bytes of each storage are a polynomial of the size, and so are those that live after
a call. The peak is the largest of as many polynomials as there are calls: it may move
from one to another, which is why each is interpolated.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

__all__ = ["Interpolation", "interpolate"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Interpolation:
    """A polynomial for each call, by Newton's divided differences.

    Attributes:
        first: The smallest size that was recorded.
        step: From one recorded size to the next.
        differences: For each degree the difference of that order at ``first``, a column
            of integers of any length, one for each call.
    """

    first: int
    step: int
    differences: tuple[NDArray[np.object_], ...]

    def live_nbytes(self, size: int) -> list[Fraction]:
        """Return the bytes that live after each call; exact, if the program is one."""
        t = Fraction(size - self.first, self.step)
        total = self.differences[0] * Fraction(1)
        factor = Fraction(1)
        for k, difference in enumerate(self.differences[1:]):
            factor *= (t - k) / (k + 1)
            total = total + difference * factor
        return list(total)

    def peak_nbytes(self, size: int) -> int:
        """Return the most bytes that live after any call, rounded up; 0 for no calls."""
        t, step = size - self.first, self.step
        scale, factor = 1, 1
        total = self.differences[0]
        for k, difference in enumerate(self.differences[1:]):
            scale *= step * (k + 1)
            factor *= t - k * step
            total = total * (step * (k + 1)) + difference * factor
        return -(-max(total, default=0) // scale)

    @property
    def is_affine(self) -> bool:
        """Whether no call's bytes grow faster than the size."""
        return not any(np.any(d) for d in self.differences[2:])


def interpolate(sizes: Sequence[int], live: Sequence[Sequence[int]]) -> Interpolation:
    """Return the polynomials through the bytes that were recorded.

    Args:
        sizes: Those recorded, equally far apart, rising.
        live: For each of them the bytes that live after each call.

    Source:
        Newton's forward difference formula, in integers and fractions: a floor would
        look like another program.
    """
    rows = [np.array(row, object) for row in live]
    differences = []
    while rows:
        differences.append(rows[0])
        rows = [b - a for a, b in pairwise(rows)]
    step = sizes[1] - sizes[0] if len(sizes) > 1 else 1
    return Interpolation(first=sizes[0], step=step, differences=tuple(differences))
