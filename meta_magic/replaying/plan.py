"""Decide which calls of a program must run again, and what may be freed when.

A wanted storage is followed backwards: to the calls that wrote it, to what those read,
and so on, up to calls that overwrite everything. Random numbers come from a stream, so
whatever drew from it earlier must draw again, into memory that is thrown away if
nobody wants it.
"""

from array import array
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import IntEnum
from math import prod
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from meta_magic.errors import ReplayError
from meta_magic.replaying.operators import Operator, find_operator
from meta_magic.trace.program import (
    DRAW,
    HEADER,
    Constant,
    Geometry,
    Place,
    Program,
    Signature,
)

__all__ = [
    "Call",
    "Columns",
    "Draw",
    "Plan",
    "Request",
    "Step",
    "StepKind",
    "plan_replay",
    "split_draw",
]


MAX_DRAWN: Final = 2**20
GROUP: Final = 16


class StepKind(IntEnum):
    """What is done with a call of the program."""

    RUN = 0
    """Run it on real tensors."""
    ALLOCATE = 1
    """Make the memory that it makes; its content is overwritten later."""
    DRAW = 2
    """Run it on memory of its own, for the random numbers that it uses up."""


class Call(NamedTuple):
    """One operator call, as a replay needs it.

    Attributes:
        number: Its place in the program.
        signature: What it shares with its like.
        operator: What it calls.
        inputs: Storage of each tensor argument.
        outputs: Storage of each tensor returned.
    """

    number: int
    signature: Signature
    operator: Operator
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]

    @property
    def written(self) -> set[int]:
        """The storages of the arguments that it writes."""
        return {self.inputs[i] for i in self.signature.writes}

    @property
    def read(self) -> set[int]:
        """The storages whose content it reads."""
        if self.operator.reads_metadata:
            return set()
        skipped = {0} if self.operator.is_fill else set()
        return {s for i, s in enumerate(self.inputs) if i not in skipped}

    def fills(self, nbytes: int) -> bool:
        """Whether it overwrites a whole storage of so many bytes, its first argument's.

        Whatever lay in it before.
        """
        if not self.operator.is_fill or self.inputs.count(self.inputs[0]) > 1:
            return False
        geometry = self.signature.inputs[0]
        return is_dense(geometry) and span_nbytes(geometry) == nbytes


class Draw(NamedTuple):
    """One use of a generator, as ``Randomness.draws`` has it."""

    number: int
    call: int
    generator: int
    source: int

    @property
    def after(self) -> int | None:
        """The draw whose end state it began from; None if it was a state of its own."""
        return self.source // 2 - 1 if self.source and not self.source & 1 else None


class Step(NamedTuple):
    """One thing to do.

    Attributes:
        kind: What.
        call: The call that it is about.
        draw: What it draws from, None if it does not.
        frees: Storages of no use after it.
        finishes: Wanted storages that have their content after it.
    """

    kind: StepKind
    call: Call
    draw: Draw | None
    frees: tuple[int, ...]
    finishes: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What to do to have the wanted storages.

    Attributes:
        columns: The program.
        wanted: Storages to make.
        steps: What to do, in order.
        given: Storages that are there before the first step, with their content.
        blank: Storages that are there before the first step as mere memory.
        uninitialized: Wanted storages that nothing ever writes.
        end: Where torch's default generator stands afterwards, as the source of a
            draw; None if it does not move.
        last_draw: The last draw from that generator; -1 if there is none.
    """

    columns: "Columns"
    wanted: frozenset[int]
    steps: tuple[Step, ...]
    given: frozenset[int]
    blank: frozenset[int]
    uninitialized: frozenset[int]
    end: int | None
    last_draw: int

    def peak_nbytes(self, kept: Mapping[int, int], *, can_split: bool) -> int:
        """Return the most bytes that are held at any moment.

        Args:
            kept: Bytes that a wanted storage takes once it is finished.
            can_split: Whether draws of no use are made by :func:`split_draw`.
        """
        sizes = self.columns.nbytes_by_storage
        alive = {storage: sizes[storage] for storage in self.given | self.blank}
        now = peak = sum(alive.values())
        for step in self.steps:
            made = [s for s in step.call.outputs if s not in alive]
            if step.kind == StepKind.DRAW:
                call = step.call
                pieces = split_draw(call) if can_split else []
                itemsize = call.signature.inputs[0].dtype.itemsize if pieces else 0
                scratch = {*call.inputs, *made} - alive.keys()
                whole = sum(sizes[storage] for storage in scratch)
                peak = max(peak, now + max(pieces, default=0) * itemsize or whole)
                continue
            for storage in made:
                alive[storage] = sizes[storage]
                now += sizes[storage]
            peak = max(peak, now)
            for storage in step.frees:
                now -= alive.pop(storage)
            for storage in step.finishes:
                size, left = alive.pop(storage), kept.get(storage, sizes[storage])
                if left != size:  # cast, with both there for a moment
                    peak = max(peak, now + left)
                now += left - size
        return peak


class Columns:
    """The columns of a program, read into calls one by one.

    Attributes:
        program: The program.
        draws: All draws in order.
        births: For each storage, the call that made it.
        constants: Storages that came from outside with their content.
        nbytes_by_storage: Bytes of each storage.
    """

    def __init__(self, program: Program) -> None:
        self.program = program
        self.constants: dict[int, Constant] = {c.storage: c for c in program.constants}
        self.draws = read_draws(program)
        self.draws_by_call: dict[int, Draw] = {draw.call: draw for draw in self.draws}
        self._words = memoryview(program.words).cast("I")
        self._storages = memoryview(program.storage_by_tensor).cast("I")
        self._operators: dict[int, Operator] = {}
        self.births: dict[int, int] = {}
        self.nbytes_by_storage: dict[int, int] = {}
        self._find_births()
        self.nbytes_by_storage.update(program.nbytes_by_storage)
        for constant in program.constants:  # that no operator may ever have met
            self.nbytes_by_storage[constant.storage] = constant.nbytes

    def __len__(self) -> int:
        return len(self.program.offsets) - 1

    def tensors(self, index: int) -> tuple[Signature, list[int]]:
        """Return the signature of a call and the storages of all its tensors."""
        start, end = self.program.offsets[index], self.program.offsets[index + 1]
        signature = self.program.signatures[self._words[start]]
        return signature, [self._storages[n] for n in self._words[start + HEADER : end]]

    def call(self, index: int) -> Call:
        """Return a call.

        Raises:
            ReplayError: Its operator cannot be called.
        """
        signature, storages = self.tensors(index)
        n_inputs = len(signature.inputs)
        number = self._words[self.program.offsets[index]]
        operator = self._operators.get(number)
        if operator is None:
            operator = self._operators[number] = find_operator(signature.op)
        return Call(
            index,
            signature,
            operator,
            tuple(storages[:n_inputs]),
            tuple(storages[n_inputs:]),
        )

    def constructs(self, index: int) -> int | None:
        """Return the number of the module during whose construction a call was made."""
        word = self._words[self.program.offsets[index] + 2]
        return word >> 1 if word & 1 else None

    def line(self, index: int) -> int | None:
        """Return the line of the cell that made a call."""
        return self._place(index).line

    def function(self, index: int) -> str | None:
        """Return the name of torch's function that made a call."""
        return self._place(index).function

    def _place(self, index: int) -> Place:
        return self.program.places[self._words[self.program.offsets[index] + 1] - 1]

    def _find_births(self) -> None:
        met: set[int] = set()
        for index in range(len(self)):
            signature, storages = self.tensors(index)
            n_inputs = len(signature.inputs)
            for position, storage in enumerate(storages):
                if storage in met:
                    continue
                met.add(storage)
                geometries = (*signature.inputs, *signature.outputs)
                self.nbytes_by_storage[storage] = span_nbytes(geometries[position])
                if position >= n_inputs:
                    self.births[storage] = index


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What a replay is to make.

    Attributes:
        storages: Numbers of storages, as they are after the calls looked at.
        modules: Numbers of the modules they belong to. What was drawn while these
            were constructed is drawn even if it was thrown away, so that torch's
            generator can go on from where construction would have left it.
        until: Calls to look at; None for all of them.
    """

    storages: frozenset[int]
    modules: frozenset[int] = frozenset()
    until: int | None = None


def plan_replay(columns: Columns, request: Request) -> Plan:
    """Return what must be done for a request.

    Args:
        columns: The program.
        request: What is wanted of it.

    Raises:
        ReplayError: Their content depends on something that was not recorded.
    """
    return Planner(columns, request).build()


class Planner:
    """The backward walk over a program."""

    def __init__(self, columns: Columns, request: Request) -> None:
        self._columns = columns
        self._wanted = request.storages
        self._modules = request.modules
        self._n_calls = len(columns) if request.until is None else request.until
        self._forced: set[int] = set()
        self._calls: dict[int, Call] = {}
        self._kinds: dict[int, StepKind] = {}
        self._given: set[int] = set()
        self._blank: set[int] = set()

    def build(self) -> Plan:
        """Return the plan."""
        while True:
            self._walk_back()
            blind, reading = self._find_missing_draws()
            if not reading:
                break
            self._forced |= reading  # what they read must be there, too
        for index in blind:
            self._add_draw(index)
        self._check_given()
        steps = tuple(self._order())
        last_draw = self._find_last_draw()
        return Plan(
            columns=self._columns,
            wanted=self._wanted,
            steps=steps,
            given=frozenset(self._given),
            blank=frozenset(self._blank),
            uninitialized=self._find_uninitialized(steps),
            end=None if last_draw < 0 else self._find_end(last_draw),
            last_draw=last_draw,
        )

    def _call(self, index: int) -> Call:
        call = self._calls.get(index)
        if call is None:
            call = self._calls[index] = self._columns.call(index)
        return call

    def _walk_back(self) -> None:
        """Find the calls that the wanted content comes from."""
        self._kinds = {}
        contents, memory = set(self._wanted), set[int]()
        births = self._columns.births
        for index in range(self._n_calls - 1, -1, -1):
            signature, storages = self._columns.tensors(index)
            is_forced = index in self._forced
            if not is_forced and contents.isdisjoint(storages):
                if not memory.isdisjoint(storages[len(signature.inputs) :]):
                    self._allocate(index, memory)
                continue
            born = {s for s in storages if births.get(s) == index}
            changed = born | {storages[i] for i in signature.writes}
            if is_forced or changed & contents:
                self._include(index, born, contents, memory)
            self._allocate(index, memory)
        self._given, self._blank = contents, memory - contents

    def _include(
        self, index: int, born: set[int], contents: set[int], memory: set[int]
    ) -> None:
        """Add a call to the plan, and what it needs to what is needed before it."""
        call = self._call(index)
        contents -= born
        if call.operator.is_empty:
            self._kinds[index] = StepKind.ALLOCATE
            return
        self._kinds[index] = StepKind.RUN
        if call.operator.is_fill:
            target = call.inputs[0]
            if call.fills(self._columns.nbytes_by_storage[target]):
                contents.discard(target)
                memory.add(target)
            else:
                contents.add(target)
        contents |= call.read
        if call.operator.reads_metadata:
            memory |= {s for s in call.inputs if s not in contents}

    def _allocate(self, index: int, memory: set[int]) -> None:
        born = {s for s in memory if self._columns.births.get(s) == index}
        if born:
            memory -= born
            self._kinds.setdefault(index, StepKind.ALLOCATE)
            self._call(index)

    def _find_missing_draws(self) -> tuple[list[int], set[int]]:
        """Find the calls that draw before a needed call does, from the same stream.

        Returns:
            Those that can draw into memory of no use, and those that must first have
            what they read.
        """
        columns = self._columns
        wanted_draws = [
            draw
            for draw in columns.draws
            if draw.call < self._n_calls and self._is_needed(draw)
        ]
        needed: set[int] = set()
        for draw in reversed(wanted_draws):
            link: Draw | None = draw
            while link is not None and link.number not in needed:
                needed.add(link.number)
                if not link.source:
                    raise ReplayError(
                        f"{columns.call(link.call).operator.name} in line "
                        f"{columns.line(link.call)} drew from a generator that another "
                        "recording around this one had moved"
                    )
                link = None if link.after is None else columns.draws[link.after]
        missing = sorted(columns.draws[number].call for number in needed)
        missing = [i for i in missing if self._kinds.get(i) != StepKind.RUN]
        blind = [i for i in missing if self._call(i).operator.draws_blindly]
        return blind, set(missing) - set(blind)

    def _is_needed(self, draw: Draw) -> bool:
        if self._kinds.get(draw.call) == StepKind.RUN:
            return True
        if self._columns.constructs(draw.call) in self._modules:
            return True
        signature, storages = self._columns.tensors(draw.call)
        changed = {storages[i] for i in signature.writes}
        return bool(self._wanted & {*changed, *storages[len(signature.inputs) :]})

    def _add_draw(self, index: int) -> None:
        """Add a call for its draw: in place where there is memory, else on its own."""
        call, births = self._call(index), self._columns.births
        has_memory = all(
            births.get(s) in self._kinds and self._kinds[births[s]] != StepKind.DRAW
            for s in {*call.inputs, *call.outputs}
        )
        self._kinds[index] = StepKind.RUN if has_memory else StepKind.DRAW

    def _check_given(self) -> None:
        """Refuse what came from outside without its content.

        Raises:
            ReplayError: Some did.
        """
        columns = self._columns
        imported = {i.storage: i for i in columns.program.imports}
        for storage in sorted(self._given - columns.constants.keys()):
            first = next(
                (i for i in self._kinds if storage in self._call(i).inputs), None
            )
            where = "" if first is None else f", read by {self._describe(first)},"
            if storage in imported:
                if imported[storage].is_stale:
                    raise ReplayError(
                        f"a tensor of an earlier recording{where} was changed in place "
                        "outside of any recording: do that in a recorded cell, too",
                        storage,
                    )
                continue
            raise ReplayError(
                f"a tensor of {columns.nbytes_by_storage.get(storage, 0):,} bytes"
                f"{where} came from outside of the recording, on meta and so without "
                "its values (made elsewhere, or loaded from a file onto meta): make it "
                "in a recorded cell, too",
                storage,
            )

    def _describe(self, index: int) -> str:
        line = self._columns.line(index)
        name = self._call(index).operator.name
        return name if line is None else f"{name} in line {line}"

    def _order(self) -> Iterator[Step]:
        """Yield the steps, each with what may go after it."""
        indices = sorted(self._kinds)
        last: dict[int, int] = {}
        for index in indices:
            call, kind = self._call(index), self._kinds[index]
            used = call.inputs if kind == StepKind.RUN else ()
            made = call.outputs if kind != StepKind.DRAW else ()
            last.update(dict.fromkeys((*used, *made), index))
        over: dict[int, list[int]] = {}
        for storage, index in last.items():
            over.setdefault(index, []).append(storage)
        for index in indices:
            ended = over.get(index, ())
            yield Step(
                self._kinds[index],
                self._call(index),
                self._columns.draws_by_call.get(index)
                if self._kinds[index] != StepKind.ALLOCATE
                else None,
                tuple(s for s in ended if s not in self._wanted),
                tuple(s for s in ended if s in self._wanted),
            )

    def _find_uninitialized(self, steps: Iterable[Step]) -> frozenset[int]:
        """Return the wanted storages of which some holds what lay in memory before."""
        sizes, births = self._columns.nbytes_by_storage, self._columns.births
        raw = {storage: RawMemory(sizes[storage]) for storage in self._blank}
        for step in steps:
            call = step.call
            if step.kind == StepKind.DRAW:
                continue
            written = {i: call.inputs[i] for i in call.signature.writes}
            born = {s for s in call.outputs if births.get(s) == call.number}
            is_reading_raw = bool(call.read & (raw.keys() - set(written.values())))
            if step.kind == StepKind.ALLOCATE or is_reading_raw:
                raw.update((s, RawMemory(sizes[s])) for s in born)
            for index, storage in written.items():
                if storage in raw:
                    raw[storage].write(call.signature.inputs[index])
                    if raw[storage].is_written:
                        del raw[storage]
        return frozenset(raw.keys() & self._wanted)

    def _find_last_draw(self) -> int:
        """Return the last draw of the plan from the default generator, or -1."""
        return max(
            (
                draw.number
                for draw in self._columns.draws
                if draw.generator == 0
                and self._kinds.get(draw.call, StepKind.ALLOCATE) != StepKind.ALLOCATE
            ),
            default=-1,
        )

    def _find_end(self, last_draw: int) -> int:
        """Return where the default generator stands after a draw."""
        for draw in self._columns.draws[last_draw + 1 :]:
            if draw.generator == 0:
                return draw.source
        return self._columns.program.randomness.ends[0]


class RawMemory:
    """Memory without content, of which parts are written."""

    def __init__(self, nbytes: int) -> None:
        self._nbytes = nbytes
        self._is_byte_written: npt.NDArray[np.bool_] | None = None
        self.is_written = nbytes == 0

    def write(self, geometry: Geometry) -> None:
        """Write the elements of a tensor."""
        shape, stride = geometry.shape, geometry.stride
        itemsize = geometry.dtype.itemsize
        is_whole = is_dense(geometry) and span_nbytes(geometry) == self._nbytes
        if is_whole or stride is None or geometry.storage_offset is None:
            self.is_written = True
        elif prod(shape):
            if self._is_byte_written is None:
                self._is_byte_written = np.zeros(self._nbytes, np.bool_)
            np.lib.stride_tricks.as_strided(
                self._is_byte_written[geometry.storage_offset * itemsize :],
                (*shape, itemsize),
                (*(step * itemsize for step in stride), 1),
            )[...] = True
            self.is_written = bool(self._is_byte_written.all())


def split_draw(call: Call) -> list[int]:
    """Return how many elements to draw at a time, for numbers of no use on the CPU.

    They are used up in the same order as by the whole call, in little memory. Empty if
    only the whole call does that.
    """
    geometry = call.signature.inputs[0] if call.inputs else None
    if not call.operator.can_split or geometry is None or not is_dense(geometry):
        return []
    strides = list(geometry.stride or ())
    if strides != sorted(strides, reverse=True):
        return []  # in another order
    whole, rest = divmod(prod(geometry.shape), MAX_DRAWN)
    pieces = [MAX_DRAWN] * whole
    if 0 < rest < GROUP and pieces:
        pieces[-1] += rest  # normal_ draws otherwise for less than a group
    elif rest:
        pieces.append(rest)
    return pieces


def read_draws(program: Program) -> list[Draw]:
    """Return the draws of a program."""
    words = array("I")
    words.frombytes(program.randomness.draws)
    return [
        Draw(number, *words[DRAW * number : DRAW * number + DRAW])
        for number in range(len(words) // DRAW)
    ]


def is_dense(geometry: Geometry) -> bool:
    """Whether a tensor's elements fill a stretch of memory, each its own place."""
    wanted = 1
    pairs = zip(geometry.stride or (), geometry.shape, strict=True)
    for step, size in sorted(pair for pair in pairs if pair[1] != 1):
        if step != wanted:
            return False
        wanted *= size
    return geometry.storage_offset == 0


def span_nbytes(geometry: Geometry) -> int:
    """Return the bytes from a storage's start to the last element of a tensor."""
    if geometry.stride is None or geometry.storage_offset is None:
        return prod(geometry.shape) * geometry.dtype.itemsize
    if 0 in geometry.shape:
        return 0
    last = sum(
        (n - 1) * step for n, step in zip(geometry.shape, geometry.stride, strict=True)
    )
    return (geometry.storage_offset + last + 1) * geometry.dtype.itemsize
