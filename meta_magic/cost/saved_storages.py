"""Which storages autograd saved for backward: those that backward reads again."""

from typing import TYPE_CHECKING, Final

import numpy as np

from meta_magic.cost.program_columns import PHASES, Columns, Flags, Integers
from meta_magic.cost.storage_lives import Lives

if TYPE_CHECKING:
    from meta_magic.trace.program import Program

__all__ = ["find_saved"]

SEED: Final = "aten.ones_like.default"
"""The gradient that a backward pass begins with."""


def find_saved(program: "Program", columns: Columns, lives: Lives) -> Integers:
    """Return the storages that autograd saved.

    A backward call reads what its forward call had read or made. What checkpointing
    computes again, and what a function of the user's own saves, is of other calls:
    that is what else a backward call reads of forward ones.
    """
    is_backward = columns.phase == PHASES.index("backward")
    reads = np.flatnonzero((columns.forward[columns.call] >= 0) & ~columns.is_made)
    storages = columns.storage[reads]
    forward = columns.forward[columns.call[reads]]
    is_of_forward = find_touched(columns, forward, storages)
    seeds = [s.op == SEED for s in program.with_raised.signatures]
    maker = columns.call[lives.first_tensor[storages]]
    is_other = (
        ~is_backward[maker] & ~np.asarray(seeds, np.bool_)[columns.signature[maker]]
    )
    return np.unique(storages[is_of_forward | is_other])


def find_touched(columns: Columns, calls: Integers, storages: Integers) -> Flags:
    """Return for each pair of a call and a storage whether it read or made that."""
    is_touched = np.zeros(len(calls), np.bool_)
    left, at = np.arange(len(calls)), columns.first[calls]
    end = columns.first[calls + 1]
    while len(left):  # as often as the call with most tensors has some
        within = at < end
        left, at, end = left[within], at[within], end[within]
        is_same = columns.storage[at] == storages[left]
        is_touched[left[is_same]] = True
        left, at, end = left[~is_same], at[~is_same] + 1, end[~is_same]
    return is_touched
