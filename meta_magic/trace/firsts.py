"""Where each number of a column stands first."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["find_firsts"]


def find_firsts(numbers: NDArray[np.integer[Any]], n: int) -> NDArray[np.int64]:
    """Return for each number below ``n`` the first index at which it stands, or -1.

    Args:
        numbers: From 0 to below ``n``.
        n: How many there can be.
    """
    firsts = np.full(n, -1, np.int64)
    # Of several indices written to one place the last one stays.
    firsts[numbers[::-1]] = np.arange(len(numbers))[::-1]
    return firsts
