"""Which storages autograd saved for backward: those that backward reads again."""

from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import numpy as np

from meta_magic.cost.asked_autograd import find_saved_slots
from meta_magic.cost.program_columns import PHASES, Columns, Flags, Integers
from meta_magic.trace.program import MODULE_HEADER

if TYPE_CHECKING:
    from meta_magic.cost.storage_lives import Lives
    from meta_magic.trace.program import Program

__all__ = ["find_saved"]

SEED: Final = "aten.ones_like.default"
"""The gradient that a backward pass begins with."""


def find_saved(
    program: "Program", columns: Columns, lives: "Lives", trained: Sequence[int]
) -> Integers:
    """Return the storages that autograd saved.

    Args:
        program: The program.
        columns: Its columns.
        lives: When its storages live.
        trained: Storages of the leaves whose gradients are wanted.
    """
    return np.concatenate(
        [
            find_read_in_backward(program, columns, lives),
            find_read_again(program, columns, lives),
            find_left(program, columns, trained),
        ]
    )


def find_read_in_backward(
    program: "Program", columns: Columns, lives: "Lives"
) -> Integers:
    """Return the storages of forward calls that backward calls read.

    A backward call reads what its forward call had read or made. What checkpointing
    computes again, and what a function of the user's own saves, is of other calls:
    that is what else a backward call reads of forward ones.
    """
    is_backward = columns.phase == PHASES.index("backward")
    reads = np.flatnonzero(is_backward[columns.call] & ~columns.is_made)
    storages, calls = columns.storage[reads], columns.call[reads]
    is_of_forward = find_touched(columns, columns.forward[calls], storages)
    seeds = np.asarray([s.op == SEED for s in program.signatures], np.bool_)
    is_late = is_backward | seeds[columns.signature]
    maker = columns.call[lives.first_tensor[storages]]
    saved: Integers = storages[is_of_forward | ~is_late[maker]]
    return saved


def find_touched(columns: Columns, calls: Integers, storages: Integers) -> Flags:
    """Return for each pair of a call, or -1, and a storage whether it has met that."""
    is_touched = np.zeros(len(calls), np.bool_)
    left = np.flatnonzero(calls >= 0)
    at, end = columns.first[calls[left]], columns.first[calls[left] + 1]
    while len(left):  # as often as the call with most tensors has some
        within = at < end
        left, at, end = left[within], at[within], end[within]
        is_same = columns.storage[at] == storages[left]
        is_touched[left[is_same]] = True
        left, at, end = left[~is_same], at[~is_same] + 1, end[~is_same]
    return is_touched


def find_read_again(program: "Program", columns: Columns, lives: "Lives") -> Integers:
    """Return the storages from which checkpointing computes others again."""
    rows = np.frombuffer(program.module_rows, np.uint32).reshape(-1, MODULE_HEADER)
    is_again = np.zeros(columns.n_calls, np.bool_)
    for first, end in rows[list(program.facts.repeated), 4:6]:
        is_again[first:end] = True
    reads = np.flatnonzero(is_again[columns.call] & ~columns.is_made)
    storages = columns.storage[reads]
    is_late = is_again | (columns.phase == PHASES.index("backward"))
    saved: Integers = storages[~is_late[columns.call[lives.first_tensor[storages]]]]
    return saved


def find_left(program: "Program", columns: Columns, trained: Sequence[int]) -> Integers:
    """Return the storages saved of calls through which no backward pass went back.

    Args:
        program: The program.
        columns: Its columns.
        trained: Storages of the leaves whose gradients are wanted.
    """
    differentiated = np.frombuffer(program.facts.differentiated, np.uint32)
    is_differentiated = np.zeros(columns.n_calls, np.bool_)
    is_differentiated[differentiated] = True
    is_needed = np.zeros(columns.n_storages, np.bool_)
    is_needed[trained] = True
    of_these = is_differentiated[columns.call] & columns.is_made
    is_needed[columns.storage[of_these]] = True
    is_differentiated[columns.forward[columns.forward >= 0]] = False
    first, calls_by_kind = (
        columns.first,
        defaultdict[tuple[int, tuple[bool, ...]], list[int]](list),
    )
    for call in np.flatnonzero(is_differentiated):
        number = int(columns.signature[call])
        inputs = slice(
            first[call], first[call] + len(program.signatures[number].inputs)
        )
        needed = tuple(is_needed[columns.storage[inputs]].tolist())
        calls_by_kind[number, needed].append(int(call))
    found = [
        columns.storage[first[calls] + slot]
        for (number, needed), calls in calls_by_kind.items()
        for slot in find_saved_slots(program.signatures[number], needed)
    ]
    return np.concatenate([np.empty(0, np.int64), *found])
