"""Which operators one call of a torch function made."""

import numpy as np
from numpy.typing import NDArray

from meta_magic.trace.program import GOES_ON, Program

__all__ = ["first_operators"]


def first_operators(program: Program) -> NDArray[np.int64]:
    """Return, for each operator call, the first one of the same call of a function.

    What no function called, as autograd does, stands alone.
    """
    words = np.frombuffer(program.words, np.uint32)
    starts = np.frombuffer(program.offsets, np.uint32)[:-1].astype(np.int64)
    places = words[starts + 1]
    # A hook may have called functions between two operators of a backward pass.
    goes_on = (words[starts + 3] == GOES_ON) & (places == np.append(0, places[:-1]))
    first = np.where(goes_on, 0, np.arange(len(starts)))
    return np.maximum.accumulate(first)
