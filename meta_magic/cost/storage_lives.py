"""From when to when each storage of a program lives, and with how many bytes."""

from collections import defaultdict
from dataclasses import dataclass
from typing import Final

import numpy as np

from meta_magic.cost.program_columns import Columns, Flags, Integers
from meta_magic.trace.derived_facts import find_firsts, find_on_meta
from meta_magic.trace.program import Program

SETITEM: Final = "torch.Tensor.__setitem__"
MAX_NUMBER_NBYTES: Final = 16
"""Those of a complex number."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Lives:
    """Stretches of calls through which a storage has so many bytes.

    One for most storages; one that is resized has several.

    Attributes:
        storage: Of each stretch the storage.
        nbytes: Its bytes.
        start: The first call after which it has them.
        stop: The first call after which it has not; the number of all calls if it
            outlived them.
        first_tensor: Of each storage the tensor by which a call first met it, as an
            index into the columns; -1 if none did.
    """

    storage: Integers
    nbytes: Integers
    start: Integers
    stop: Integers
    first_tensor: Integers


def find_lives(program: Program, columns: Columns) -> Lives:
    """Return the stretches of all storages of a program.

    A storage that is older than the program is counted from the first call that meets
    it.
    """
    first = find_firsts(columns.storage, columns.n_storages)
    rows = find_plain(program, columns, first)
    changes = find_changes(program, columns, rows[:, 1])
    is_plain = first >= 0
    is_plain[list(changes)] = False
    others = [
        (storage, *row)
        for storage, sizes in changes.items()
        for row in list_stretches(rows[storage], sizes)
    ]
    more = np.asarray(others, np.int64).reshape(-1, 4)
    storage, nbytes, start, stop = np.concatenate((rows[is_plain], more)).T
    is_on_meta = np.isin(storage, [*find_on_meta(program)])
    return Lives(
        storage=storage,
        nbytes=np.where(is_on_meta, 0, nbytes),
        start=start,
        stop=np.maximum(start, stop),
        first_tensor=first,
    )


def order_stretches(lives: Lives) -> Integers:
    """Return the order of stretches by storage, and then by start."""
    order: Integers = np.lexsort((lives.start, lives.storage))
    return order


def find_plain(program: Program, columns: Columns, first: Integers) -> Integers:
    """Return (storage, bytes, start, stop) of each storage, as if it never changed."""
    nbytes = np.zeros(columns.n_storages, np.int64)
    start = np.full(columns.n_storages, columns.n_calls)
    is_met = first >= 0
    nbytes[is_met] = columns.nbytes[first[is_met]]
    start[is_met] = columns.call[first[is_met]]
    for storage in find_assigned_numbers(program, columns, first):
        while columns.goes_on[start[storage]]:
            start[storage] -= 1
    for storage, known in program.nbytes_by_storage:
        nbytes[storage] = known
    stop = np.full(columns.n_storages, columns.n_calls)
    deaths = read_deaths(program)
    stop[deaths[:, 1]] = deaths[:, 0]
    return np.stack((np.arange(columns.n_storages), nbytes, start, stop), axis=1)


def read_deaths(program: Program) -> Integers:
    """Return pairs of the calls made before a storage was freed, and the storage."""
    words = np.frombuffer(program.deaths, np.uint32)
    return words.astype(np.int64).reshape(-1, 2)


def find_assigned_numbers(
    program: Program, columns: Columns, first: Integers
) -> Integers:
    """Return the storages of numbers that are assigned to a part of a tensor.

    The number is a tensor before the part is taken; an operator meets it later.
    """
    functions = [place.function == SETITEM for place in program.places]
    is_assigning = np.asarray([*functions, False], np.bool_)[columns.place]
    met = np.flatnonzero(first >= 0)
    tensors = first[met]
    is_number = ~columns.is_made[tensors] & is_assigning[columns.call[tensors]]
    is_number &= columns.nbytes[tensors] <= MAX_NUMBER_NBYTES
    numbers: Integers = met[is_number]
    return numbers


def find_changes(
    program: Program, columns: Columns, nbytes: Integers
) -> dict[int, list[tuple[int, int, bool]]]:
    """Return by storage when it gets other bytes: by no operator, or by growing.

    Returns:
        (call, bytes from it on, whether they are no more than it already has) in
        order of call.
    """
    changes: dict[int, list[tuple[int, int, bool]]] = defaultdict(list)
    for call, storage, size in program.facts.sizes:
        changes[storage].append((call, size, False))
    grown = columns.is_made & (columns.nbytes > nbytes[columns.storage])
    resized = np.isin(columns.storage, list(changes)) & columns.is_made
    for tensor in np.flatnonzero(grown | resized):
        storage = int(columns.storage[tensor])
        change = int(columns.call[tensor]), int(columns.nbytes[tensor]), True
        changes[storage].append(change)
    return {storage: sorted(c, key=lambda c: c[0]) for storage, c in changes.items()}


def list_stretches(
    row: Integers, changes: list[tuple[int, int, bool]]
) -> list[tuple[int, int, int]]:
    """Return (bytes, first call, call after the last) of one storage.

    Args:
        row: Storage, bytes, start and stop, as if it never changed.
        changes: As :func:`find_changes` returns them.
    """
    _, nbytes, start, stop = row.tolist()
    if not changes[0][2] and changes[0][0] <= start:
        start, nbytes, _ = changes[0]
    stretches = []
    for call, size, is_at_least in changes:
        other = max(size, nbytes) if is_at_least else size
        if other != nbytes:
            stretches.append((nbytes, start, call))
            start, nbytes = call, other
    return [*stretches, (nbytes, start, stop)]


def add_up(
    lives: Lives, n_calls: int, is_chosen: Flags, nbytes: Integers | None = None
) -> Integers:
    """Return for each call the bytes of the chosen stretches right after it.

    Args:
        lives: The stretches.
        n_calls: Calls.
        is_chosen: Of each stretch whether it counts.
        nbytes: Of each stretch what it counts; None for its bytes.
    """
    nbytes = (lives.nbytes if nbytes is None else nbytes)[is_chosen]
    change = np.zeros(n_calls + 1, np.int64)
    np.add.at(change, lives.start[is_chosen], nbytes)
    np.subtract.at(change, lives.stop[is_chosen], nbytes)
    return np.cumsum(change)[:n_calls]
