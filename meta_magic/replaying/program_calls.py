"""Read a program call by call, as a replay needs it.

Read :class:`ProgramCalls` first: it grows with the recording. A plan looks up the last
call that wrote a storage; a linear search would take minutes in a loop of a million
calls, so :func:`read_rows` reads many rows at once, for :class:`StorageWriters`.
:class:`SparseMemory` knows which storages share memory with a sparse tensor.
"""

from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from meta_magic.errors import ReplayError
from meta_magic.replaying.operators import Operator, Usage
from meta_magic.replaying.special_operators import AssumedOperator, make_operator
from meta_magic.torch_private.interrupts import uninterrupted
from meta_magic.torch_private.tensor_internals import CONSTRUCTORS, POSITIONS
from meta_magic.trace.program import DRAW, HEADER, Program, Randomness
from meta_magic.trace.program_facts import Constant
from meta_magic.trace.signature import CallSite, Geometry, Signature, span_nbytes

if TYPE_CHECKING:
    from meta_magic.replaying.kept import Kept
    from meta_magic.trace.program_facts import Assumption


class Draw(NamedTuple):
    """One use of a generator.

    Attributes:
        generator: Number of the generator; 0 is torch's default one.
        source: Where it began: 0 is unknown, ``2 * n + 1`` is recorded state ``n``,
            ``2 * n + 2`` is the end of draw ``n``.
    """

    number: int
    call: int
    generator: int
    source: int

    @property
    def end(self) -> int:
        """The source at which the draw ends."""
        return 2 * self.number + 2


def draw_before(source: int) -> int | None:
    """Return the draw that ends at a source; None for a state of no draw."""
    return source // 2 - 1 if source and not source & 1 else None


def state_before(source: int) -> int | None:
    """Return the number of the recorded state at a source; None if it has none."""
    return source // 2 if source & 1 else None


def read_draws(randomness: Randomness, first: int) -> Iterator[Draw]:
    """Yield the draws of a program from draw ``first`` on."""
    words = memoryview(randomness.draws).cast("I")
    for number in range(first, len(words) // DRAW):
        yield Draw(number, *words[DRAW * number : DRAW * number + DRAW])


Integers: TypeAlias = npt.NDArray[np.int64]
Truths: TypeAlias = npt.NDArray[np.bool_]

IS_MADE: Final = 1
IS_WRITTEN: Final = 2


class RowColumns(NamedTuple):
    """Columns with one item for each tensor argument and output of some calls."""

    calls: Integers
    storages: Integers
    spans: Integers
    is_made: Truths
    is_written: Truths

    def list_writes(self) -> Iterator[tuple[int, list[int]]]:
        """Yield the storages that are written, each with the calls that write it."""
        written, calls = self.storages[self.is_written], self.calls[self.is_written]
        order = np.argsort(written, kind="stable")
        storages, starts = np.unique(written[order], return_index=True)
        parts = np.split(calls[order], starts[1:])
        for storage, part in zip(storages.tolist(), parts, strict=False):
            yield storage, part.tolist()


def read_rows(program: Program, first: int, end: int) -> RowColumns:
    """Return the tensors of the calls from ``first`` up to ``end``."""
    words = np.frombuffer(program.words, np.uint32)
    storage_by_tensor = np.frombuffer(program.storage_by_tensor, np.uint32)
    offsets = np.asarray(program.offsets)[first : end + 1].astype(np.int64)
    counts = np.diff(offsets) - HEADER
    signature_of = words[offsets[:-1]]
    is_used = np.bincount(signature_of).tolist()
    pairs = zip(program.signatures, is_used, strict=False)
    facts = [describe(signature) if used else [] for signature, used in pairs]
    bases = np.cumsum([0, *map(len, facts)])
    table = np.array([row for rows in facts for row in rows], np.int64).reshape(-1, 2)
    rows = np.repeat(np.arange(len(counts)), counts)
    position = np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts, counts)
    tensors = words[offsets[rows] + HEADER + position]
    spans, flags = table[bases[signature_of[rows]] + position].T
    return RowColumns(
        calls=rows + first,
        storages=storage_by_tensor[tensors].astype(np.int64),
        spans=spans,
        is_made=(flags & IS_MADE) > 0,
        is_written=(flags & IS_WRITTEN) > 0,
    )


def describe(signature: Signature) -> list[tuple[int, int]]:
    """Return (bytes spanned, flags) of each tensor of a signature's calls."""
    inputs = [
        (span_nbytes(geometry), IS_WRITTEN * (index in signature.writes))
        for index, geometry in enumerate(signature.inputs)
    ]
    return inputs + [(span_nbytes(geometry), IS_MADE) for geometry in signature.outputs]


NOTHING: Final = -1


class StorageWriters:
    """The calls that made or wrote each storage; most have one such call."""

    def __init__(self, births: "array[int]") -> None:
        self._births = births
        self._later: dict[int, array[int]] = {}

    def __contains__(self, storage: int) -> bool:
        return self._births[storage] != NOTHING or storage in self._later

    def extend(self, storage: int, calls: Iterable[int]) -> None:
        """Add calls that wrote a storage, in order."""
        known = self._later.get(storage)
        if known is None:
            known = self._later[storage] = array("I")
        known.extend(calls)

    @property
    def written(self) -> AbstractSet[int]:
        """The storages that a call wrote after they were made."""
        return self._later.keys()

    def of(self, storage: int) -> list[int]:
        """Return the calls that made or wrote a storage, in order."""
        birth = self._births[storage]
        return [*([] if birth == NOTHING else [birth]), *self._later.get(storage, ())]

    def find_last(self, storage: int, before: int) -> int:
        """Return the last call that made or wrote a storage before a call, or -1."""
        calls = self._later.get(storage, ())
        position = bisect_left(calls, before)
        if position:
            return calls[position - 1]
        birth = self._births[storage]
        return birth if birth < before else NOTHING


SHARING: Final = CONSTRUCTORS | POSITIONS
"""Operators after which a sparse tensor and another one share memory."""


class SparseMemory:
    """Which storages change with another one, because a sparse tensor was made of it.

    ``values.mul_(2)`` changes ``torch.sparse_coo_tensor(indices, values)``, although
    the program has two storages.
    """

    def __init__(self) -> None:
        self.is_there = False
        self.changed: dict[int, set[int]] = {}
        self._values: dict[int, set[int]] = {}  # groups that share their values
        self._sparse_by_positions: dict[int, set[int]] = {}

    def follow(self, call: int, signature: Signature, storages: list[int]) -> set[int]:
        """Read the next call; return storages that it changes without a write."""
        self.is_there = True
        changed: set[int] = set()
        if signature.op in POSITIONS:
            sparse, positions = storages
            self._share_positions([positions], sparse)
        elif signature.op in CONSTRUCTORS:
            *all_positions, values, sparse = storages
            shared = self._values.setdefault(values, {values})
            shared.add(sparse)
            self._values[sparse] = shared
            self._share_positions(all_positions, sparse)
        elif signature.writes:
            written = {storages[i] for i in signature.writes}
            by_values = [self._values.get(s, ()) for s in written]
            by_positions = [self._sparse_by_positions.get(s, ()) for s in written]
            changed = set(chain(*by_values, *by_positions)) - written
            if changed:
                self.changed[call] = changed
        return changed

    def _share_positions(self, positions: Sequence[int], sparse: int) -> None:
        for storage in positions:
            self._sparse_by_positions.setdefault(storage, set()).add(sparse)

    def forget(self, dead: Iterable[int]) -> None:
        """Forget freed storages: no later call changes them."""
        if self.is_there:
            for storage in dead:
                self._values.pop(storage, set()).discard(storage)
                self._sparse_by_positions.pop(storage, None)


MAX_USAGES: Final = 2**10  # a loop over step counts makes a new signature at each step
NONE: Final = frozenset[int]()
ROWS_AT_ONCE: Final = 2**18
MAX_ROWS: Final = 2**10  # kept rows: a plan reads each row several times


class Call(NamedTuple):
    """One operator call, as a replay needs it."""

    number: int
    signature: Signature
    operator: Operator
    usage: Usage
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    also_changed: set[int] | frozenset[int]

    @property
    def written(self) -> set[int]:
        """The storages that it changes, without those that it makes."""
        return {self.inputs[i] for i in self.signature.writes}.union(self.also_changed)

    @property
    def read(self) -> set[int]:
        """The storages that it reads."""
        return {self.inputs[i] for i in self.usage.read}

    @property
    def drawn(self) -> Geometry:
        """Geometry of the tensor that it fills: its first argument, else its output."""
        return (*self.signature.inputs, *self.signature.outputs)[0]

    def device_on(self, device: torch.device) -> torch.device:
        """Return the device that it draws on if ``device`` replaces meta."""
        own = self.drawn.device
        return device if own.type == "meta" else own

    def fills(self, index: int, nbytes: int) -> bool:
        """Whether overwriting an argument overwrites its whole storage."""
        is_only = self.inputs.count(self.inputs[index]) == 1
        return is_only and self.usage.fills(index, nbytes)


class Readers:
    """The calls that have each storage as an argument, up to the last ``update``."""

    def __init__(self, recorded: "ProgramCalls") -> None:
        self._recorded = recorded
        self._n_read = 0
        self._calls: dict[int, array[int]] = {}

    @uninterrupted
    def update(self) -> None:
        """Read the calls that were recorded since."""
        for index in range(self._n_read, len(self._recorded)):
            signature, storages = self._recorded.tensors(index)
            for storage in storages[: len(signature.inputs)]:
                if storage not in self._calls:
                    self._calls[storage] = array("I")
                self._calls[storage].append(index)
            self._n_read = index + 1

    def between(self, storage: int, first: int, last: int) -> Sequence[int]:
        """Return the calls from ``first`` to ``last``, inclusive, reading a storage."""
        calls = self._calls.get(storage, ())
        return calls[bisect_left(calls, first) : bisect_left(calls, last + 1)]


class ProgramCalls:
    """A program as calls, with an index of its storages; it grows by :meth:`read`.

    Attributes:
        births: For each storage, the call that made it; -1 if none did.
        writers: The calls that made or wrote each storage.
        sparse: Which storages share memory with a sparse tensor.
        kept: What replays on the CPU keep for later ones; None if they keep nothing.
    """

    program: Program

    def __init__(self, program: Program) -> None:
        self._n_read = self._n_signatures = 0
        self._has_sharing = False
        self._outside: set[int] = set()
        self._rows: dict[int, tuple[Signature, list[int]]] = {}
        self._usages: dict[int, Usage] = {}
        self._assumptions: dict[int, Assumption] = {}
        self._n_by_column: dict[str, int] = {}
        self.births = array("q")
        self.writers = StorageWriters(self.births)
        self.nbytes_by_storage = array("q")
        self.constants: dict[int, Constant] = {}
        self.sparse = SparseMemory()
        self.draws: list[Draw] = []
        self.draws_by_call: dict[int, Draw] = {}
        self.dead: set[int] = set()
        self._n_placed = 0
        self._draws_elsewhere = False
        self.kept: Kept | None = None
        self.readers = Readers(self)
        self.read(program)

    @uninterrupted
    def read(self, program: Program) -> None:
        """Read a program, or what was added to it since it was read last."""
        if self._n_read:
            program.go_on_from(self.program)
        self.program = program
        imports = self._unread("imports", program.imports)
        constants = self._unread("constants", program.constants)
        sizes = self._unread("sizes", program.nbytes_by_storage)
        assumptions = self._unread("assumptions", program.assumptions)
        deaths = self._unread("deaths", memoryview(program.deaths).cast("I"))
        self.constants.update((c.storage, c) for c in constants)
        self.dead.update(deaths[1::2])
        self._words = memoryview(program.words).cast("I")
        self._storages = memoryview(program.storage_by_tensor).cast("I")
        self._assumptions.update((a.call, a) for a in assumptions)
        outside = (*imports, *constants)  # no call of this program made them
        self._outside.update(known.storage for known in outside)
        self._find_writers(deaths[1::2])
        # A storage from outside may be the argument of no call at all.
        given = [(known.storage, known.nbytes) for known in outside]
        self._make_room([storage for storage, _ in sizes])
        for storage, nbytes in (*sizes, *given):
            if nbytes > self.nbytes_by_storage[storage]:
                self.nbytes_by_storage[storage] = nbytes
                if self.kept is not None:
                    self.kept.drop([storage])  # what is kept of it is too short
        for draw in read_draws(program.randomness, len(self.draws)):
            if draw.call >= self._n_read:  # its row is not written yet
                break
            self.draws.append(draw)
            self.draws_by_call[draw.call] = draw

    def find_constant(self, storage: int) -> Constant | None:
        """Return the constant of a storage; None without one, or if written unseen."""
        is_known = storage not in self.program.written_unseen
        return self.constants.get(storage) if is_known else None

    def _make_room(self, storages: list[int]) -> None:
        n_new = max(storages, default=-1) + 1 - len(self.births)
        self.births.extend([NOTHING] * n_new)
        self.nbytes_by_storage.extend([0] * n_new)

    def _unread(self, name: str, column: Any) -> Any:
        start, self._n_by_column[name] = self._n_by_column.get(name, 0), len(column)
        return column[start:]

    def __len__(self) -> int:
        return len(self.program.offsets) - 1

    def tensors(self, index: int) -> tuple[Signature, list[int]]:
        """Return the signature of a call and the storages of all its tensors."""
        row = self._rows.get(index)
        if row is None:
            start, end = self.program.offsets[index], self.program.offsets[index + 1]
            signature = self.program.signatures[self._words[start]]
            numbers = self._words[start + HEADER : end]
            row = signature, [*map(self._storages.__getitem__, numbers)]
            if len(self._rows) == MAX_ROWS:
                self._rows.clear()
            self._rows[index] = row
        return row

    def changed_by(self, index: int) -> set[int]:
        """Return the storages that a call makes or writes."""
        signature, storages = self.tensors(index)
        changed = {s for s in storages if self.births[s] == index}
        changed.update(storages[i] for i in signature.writes)
        return changed.union(self.sparse.changed.get(index, ()))

    def input_numbers(self, call: Call) -> list[int]:
        """Return the number of each tensor argument: one Python object, one number."""
        start = self.program.offsets[call.number] + HEADER
        return [*self._words[start : start + len(call.inputs)]]

    def call(self, index: int) -> Call:
        """Return a call."""
        signature, storages = self.tensors(index)
        n_inputs = len(signature.inputs)
        usage = self._find_usage(index, signature)
        read = {storages[i] for i in usage.read} if usage.garbled else NONE
        if any(storages[i] in read for i in usage.garbled):
            line = self.line(index)
            raise ReplayError(
                f"{signature.op}{'' if line is None else f' in line {line}'} resizes "
                "its out=, which is also its argument: torch then computes garbage; "
                "give it another out="
            )
        return Call(
            index,
            signature,
            usage.operator,
            usage,
            tuple(storages[:n_inputs]),
            tuple(storages[n_inputs:]),
            self.sparse.changed.get(index, NONE),
        )

    def _find_usage(self, index: int, signature: Signature) -> Usage:
        if index in self._assumptions:
            assumption = self._assumptions[index]
            return Usage(signature, AssumedOperator(signature, assumption))
        number = self._words[self.program.offsets[index]]
        usage = self._usages.get(number)
        if usage is None:
            usage = self._usages[number] = Usage(signature, make_operator(signature))
            if len(self._usages) > MAX_USAGES:
                del self._usages[next(iter(self._usages))]
        return usage

    def constructs(self, index: int) -> int | None:
        """Return the module in whose construction a call was made, if any."""
        word = self._words[self.program.offsets[index] + 2]
        return word >> 1 if word & 1 else None

    def line(self, index: int) -> int | None:
        """Return the line of the cell that made a call."""
        return self._call_site(index).line

    def describe(self, call: Call) -> str:
        """Return the name of a call's operator, and its line."""
        name, line = call.operator.name, self.line(call.number)
        return name if line is None else f"{name} in line {line}"

    def function(self, index: int) -> str | None:
        """Return the name of the function of torch that made a call."""
        return self._call_site(index).function

    def drawn_storages(self) -> set[int]:
        """Return the storages whose content depends on random numbers."""
        drawn: set[int] = set()
        for index in range(len(self)):
            signature, storages = self.tensors(index)
            n_inputs = len(signature.inputs)
            if index in self.draws_by_call or not drawn.isdisjoint(storages[:n_inputs]):
                drawn.update(storages[n_inputs:])
                drawn.update(storages[i] for i in signature.writes)
        return drawn

    def draws_elsewhere(self) -> bool:
        """Whether a call drew on a real device other than the CPU."""
        for draw in self.draws[self._n_placed :]:
            signature, _ = self.tensors(draw.call)
            for geometry in (*signature.inputs, *signature.outputs):
                self._draws_elsewhere |= geometry.device.type not in ("meta", "cpu")
        self._n_placed = len(self.draws)
        return self._draws_elsewhere

    def _call_site(self, index: int) -> CallSite:
        return self.program.call_sites[self._words[self.program.offsets[index] + 1] - 1]

    def _find_writers(self, dead: Iterable[int]) -> None:
        """Index the calls that were not read yet; then some storages are dead."""
        self._rows.clear()
        self._make_room([*self._unread("tensors", self._storages), *self._outside])
        while self._n_read < len(self):
            end = min(self._n_read + ROWS_AT_ONCE, len(self))
            rows = read_rows(self.program, self._n_read, end)
            self._index_rows(rows, self._find_shared(self._n_read, end))
            self._n_read = end
        self.sparse.forget(dead)

    def _find_shared(self, first: int, end: int) -> dict[int, list[int]]:
        """Return the calls that change each storage through a sparse tensor."""
        new = self.program.signatures[self._n_signatures :]
        self._n_signatures += len(new)
        self._has_sharing |= any(signature.op in SHARING for signature in new)
        changed: dict[int, list[int]] = {}
        for index in range(first, end) if self._has_sharing else ():
            signature, storages = self.tensors(index)
            if self.sparse.is_there or signature.op in SHARING:
                for storage in self.sparse.follow(index, signature, storages):
                    changed.setdefault(storage, []).append(index)
        return changed

    def _index_rows(self, columns: RowColumns, shared: dict[int, list[int]]) -> None:
        births = np.frombuffer(self.births, np.int64)
        sizes = np.frombuffer(self.nbytes_by_storage, np.int64)
        storages, firsts = np.unique(columns.storages, return_index=True)
        is_new = (births[storages] == NOTHING) & ~np.isin(storages, [*self._outside])
        is_born = is_new & columns.is_made[firsts]
        births[storages[is_born]] = columns.calls[firsts[is_born]]
        self._outside.update(storages[is_new & ~is_born].tolist())
        is_over = columns.spans > sizes[columns.storages]
        grown = columns.storages[is_over]
        np.maximum.at(sizes, grown, columns.spans[is_over])
        if self.kept is not None:
            self.kept.drop(set(grown.tolist()))
        for storage, calls in columns.list_writes():
            others = shared.pop(storage, ())
            every = sorted({*calls, *others}) if others else calls
            self.writers.extend(storage, every)
        for storage, calls in shared.items():
            self.writers.extend(storage, calls)
