"""Between which calls each storage of a program is alive, and with how many bytes.

Read ``find_lives`` first.
"""

from collections import defaultdict
from dataclasses import dataclass
from typing import Final

import numpy as np

from meta_magic.cost.program_columns import Columns, Flags, Integers
from meta_magic.trace.derived_facts import find_firsts, find_on_meta
from meta_magic.trace.program import Program

SETITEM: Final = "torch.Tensor.__setitem__"
NUMPY: Final = "torch.Tensor.numpy"
MAX_NUMBER_NBYTES: Final = 16
"""Bytes of a complex number."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Lives:
    """Stretches of time: calls between which a storage has a constant number of bytes.

    Most storages have one stretch; one that is resized has several.

    Attributes:
        storage: For each stretch its storage.
        nbytes: For each stretch its bytes.
        start: For each stretch the first call after which it is alive.
        stop: For each stretch the first call after which it is not; the number of all
            calls if the storage outlived them.
        first_tensor: For each storage the first tensor on it, as an index into the
            columns; -1 if no call read or made one.
    """

    storage: Integers
    nbytes: Integers
    start: Integers
    stop: Integers
    first_tensor: Integers


def find_lives(program: Program, columns: Columns) -> Lives:
    """Return all storages' stretches; older ones begin at the call that reads them."""
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
    # A recording copies the values for x.numpy(); on the CPU it is the tensor's memory.
    used, tensors = find_used_by(NUMPY, program, columns, first)
    arrays = used[columns.is_made[tensors]].tolist()
    is_without = np.isin(storage, [*find_on_meta(program), *arrays])
    return Lives(
        storage=storage,
        nbytes=np.where(is_without, 0, nbytes),
        start=start,
        stop=np.maximum(start, stop),
        first_tensor=first,
    )


def order_stretches(lives: Lives) -> Integers:
    """Return the order of stretches by storage, then by start."""
    order: Integers = np.lexsort((lives.start, lives.storage))
    return order


def find_plain(program: Program, columns: Columns, first: Integers) -> Integers:
    """Return (storage, bytes, start, stop) of each storage, resizing ignored."""
    nbytes = np.zeros(columns.n_storages, np.int64)
    start = np.full(columns.n_storages, columns.n_calls)
    is_used = first >= 0
    nbytes[is_used] = columns.nbytes[first[is_used]]
    start[is_used] = columns.call[first[is_used]]
    # In x[i] = 7.0 torch makes a tensor of the number before it takes the part x[i],
    # and only later an operator reads the number.
    used, tensors = find_used_by(SETITEM, program, columns, first)
    is_number = ~columns.is_made[tensors] & (
        columns.nbytes[tensors] <= MAX_NUMBER_NBYTES
    )
    for storage in used[is_number]:
        while columns.goes_on[start[storage]]:
            start[storage] -= 1
    for storage, known in program.nbytes_by_storage:
        nbytes[storage] = known
    stop = np.full(columns.n_storages, columns.n_calls)
    deaths = read_deaths(program)
    stop[deaths[:, 1]] = deaths[:, 0]
    return np.stack((np.arange(columns.n_storages), nbytes, start, stop), axis=1)


def read_deaths(program: Program) -> Integers:
    """Return pairs (number of calls before a storage was freed, storage)."""
    words = np.frombuffer(program.deaths, np.uint32)
    return words.astype(np.int64).reshape(-1, 2)


def find_used_by(
    function: str, program: Program, columns: Columns, first: Integers
) -> tuple[Integers, Integers]:
    """Return the storages that a function used first, and their first tensors."""
    is_of = [site.function == function for site in program.call_sites]
    is_used = np.asarray([*is_of, False], np.bool_)[columns.call_site]
    used = np.flatnonzero(first >= 0)
    used = used[is_used[columns.call[first[used]]]]
    return used, first[used]


def find_changes(
    program: Program, columns: Columns, nbytes: Integers
) -> dict[int, list[tuple[int, int, bool]]]:
    """Return by storage the changes of its bytes: by no operator, or by growing.

    Each is (call, bytes from then on, whether they are a lower bound), in order.
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

    ``row`` is that of :func:`find_plain`.
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

    ``nbytes`` are the bytes of each stretch; None for ``lives.nbytes``.
    """
    nbytes = (lives.nbytes if nbytes is None else nbytes)[is_chosen]
    change = np.zeros(n_calls + 1, np.int64)
    np.add.at(change, lives.start[is_chosen], nbytes)
    np.subtract.at(change, lives.stop[is_chosen], nbytes)
    return np.cumsum(change)[:n_calls]
