"""Replay a loop of small calls forward, because a plan for each value is slow.

A plan follows each value back, call by call. ``N[i, j] += 1`` in a loop of 200,000
turns, or ``loss.item()`` in each step, needs nearly all calls anyway: they are run in
their recorded order, with no decision for each call. If a call cannot be run, the
storages that it writes are dropped; a plan makes them when they are wanted. What is
done with the calls of a signature is decided once (:class:`SmallCall`): to decide
it for each call would take longer than the calls. Read :meth:`ForwardReplay.run` first.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import IntEnum
from sys import maxsize
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias, cast

import numpy as np
import torch
from torch import Tensor, UntypedStorage

from meta_magic.errors import ReplayError
from meta_magic.recording.identities.tensors import tensors_in
from meta_magic.replaying.call_runner import HeldStorage, ReplayMemory, load_bytes
from meta_magic.replaying.operators import Usage
from meta_magic.replaying.program_calls import Draw, ProgramCalls, read_draws
from meta_magic.replaying.special_operators import make_operator
from meta_magic.replaying.streams import Streams
from meta_magic.trace.program import HEADER, Randomness
from meta_magic.trace.program_facts import Constant
from meta_magic.trace.signature import (
    CPU,
    VIEWS_IN_PLACE,
    Geometry,
    Signature,
    short_name,
    span_nbytes,
)

if TYPE_CHECKING:
    from meta_magic.replaying.kept import Kept

LARGE_NBYTES: Final = 2**20
LARGE_WORK: Final = 2**24
"""A call that changes more bytes, or takes more operations, is large: it is checked
against the limits."""


MIN_SUM: Final = 16
"""Numbers added to elements of one storage that are added by one call."""

WIDEST: Final = {int: torch.int64, float: torch.float64}


class CallKind(IntEnum):
    """What a forward replay does with the calls of a signature."""

    PASS = 0
    """Skip them: they make views, or read a value for the cell."""
    RUN = 1
    """Run them."""
    ALLOCATE = 2
    """Allocate their outputs: these are uninitialized."""
    FORGET = 3
    """Do not run them, and drop the storages that they make or write."""
    REAL = 4
    """Drop what they write: real tensors, which no small call reads."""


class SmallCall:
    """What a forward replay does with the calls of one signature.

    Attributes:
        made: Index among all tensors of a row, and geometry, of new storages.
        n_needed: How many tensors the quick way needs; for calls that draw or
            are not run one more than there are, so that it is never taken.
        changed: Indices, among all tensors of a row, of new and written storages.
        is_own: Whether its output is known to have the recorded strides, and a storage
            of its own.
        is_copy_of_itself: Whether it copies between tensors of the same geometry.
        is_large: Whether it is checked against the limits.
        usage: How the operator uses its tensors; None unless the calls are run.
        added: The number that it adds to one element in place, if it is no tensor.
        added_to: The dtype of the element, and one that the number has in torch; None
            of other calls.
        is_of_element: Whether it computes one number from one element of a table, as
            ``table[i, j].log()`` does.
    """

    def __init__(self, signature: Signature) -> None:
        n_inputs = len(signature.inputs)
        pairs = zip(signature.views, signature.outputs, strict=True)
        self.width = HEADER + n_inputs + len(signature.outputs)
        self.inputs = signature.inputs
        self.made = tuple(
            (i, geometry)
            for i, (base, geometry) in enumerate(pairs, n_inputs)
            if base is None
        )
        self.n_outputs = len(signature.outputs)
        self.writes = signature.writes
        self.changed = (*signature.writes, *(i for i, _ in self.made))
        self.kind = CallKind.FORGET
        self.is_random = self.is_large = self.is_own = self.is_of_element = False
        self.n_needed = n_inputs + 1
        self.work = self.nbytes = 0
        self.usage: Any = None
        self.added: Any = None
        self.added_to: Any = None
        self.is_copy_of_itself = (
            signature.op == "aten.copy_.default" and self.inputs[0] == self.inputs[1]
        )
        made = [geometry for _, geometry in self.made]
        changed = made + [signature.inputs[i] for i in signature.writes]
        if self.width == HEADER:  # no tensors: the profiler's
            self.kind = CallKind.PASS
        elif not signature.op.startswith("aten."):  # a custom schema may hide writes
            self.changed = tuple(range(self.width - HEADER))
        elif not changed or short_name(signature.op) in VIEWS_IN_PLACE:
            self.kind = CallKind.PASS  # a view, or a value that the cell reads
        elif signature.writes and all(g.device.type != "meta" for g in changed):
            self.kind = CallKind.REAL
        elif all(map(is_plain, (*signature.inputs, *signature.outputs))):
            self._prepare(signature)

    def _prepare(self, signature: Signature) -> None:
        """Prepare to run the calls, if they can be run forward."""
        try:
            usage = Usage(signature, make_operator(signature))
        except ReplayError:
            return
        operator = usage.operator
        written = tuple(signature.inputs[i] for i in signature.writes)
        # Unless it returns all that it writes, as it was, an ``out=`` grew.
        is_other = operator.lays_out_anew and written != signature.outputs
        if is_other or operator.is_setting:
            return
        self.usage, self.is_random = usage, operator.is_random
        self.kind = CallKind.ALLOCATE if operator.is_empty else CallKind.RUN
        self.work = usage.work
        made = [span_nbytes(geometry) for _, geometry in self.made]
        self.nbytes = sum(made)
        most = max([*made, *map(span_nbytes, self.inputs)], default=0)
        self.is_large = most > LARGE_NBYTES or self.work > LARGE_WORK
        if self.kind == CallKind.RUN and not self.is_random:
            self.n_needed = len(self.inputs)
        tensors = (*signature.inputs, *signature.outputs)
        if not signature.inputs or any(geometry.shape for geometry in tensors):
            return
        first, *others = signature.inputs
        is_plain_run = self.kind == CallKind.RUN and not self.is_random
        self.is_of_element = is_plain_run and bool(
            self.made and self.width == HEADER + 2 and first.storage_offset
        )
        if signature.op == "aten.add_.Tensor":
            _, (_, number), *scale = signature.arguments
            widest = WIDEST.get(type(number))
            is_alike = [geometry.dtype for geometry in others] == [first.dtype]
            if (widest or is_alike) and not scale:
                self.added = number if widest else None
                self.added_to = first.dtype, widest


def is_plain(geometry: Geometry) -> bool:
    """Whether a tensor is strided, on meta or the CPU, without lazy conjugation."""
    return (
        geometry.device.type in {"meta", "cpu"}
        and geometry.layout is torch.strided
        and geometry.stride is not None
        and not (geometry.is_conj or geometry.is_neg)
    )


PASS, RUN, ALLOCATE, FORGET, REAL = map(int, CallKind)

N_AT_ONCE: Final = 2**14
"""Calls after which the progress is shown."""

MUCH_NBYTES: Final = 2**26
MUCH_WORK: Final = 2**31
"""Bytes and operations of large calls after which the limits are checked again."""

Rows: TypeAlias = Iterator[tuple[int, int]]  # number of a call, offset of its row


class ReplayColumns(NamedTuple):
    """The columns of a program that a forward replay reads."""

    words: memoryview
    storage_by_tensor: Sequence[int]
    signatures: Sequence[Signature]
    deaths: Sequence[int]
    randomness: Callable[[], Randomness]
    find_constant: Callable[[int], Constant | None]


def columns_of(recorded: ProgramCalls) -> ReplayColumns:
    """Return the columns of a program."""
    program = recorded.program
    return ReplayColumns(
        words=memoryview(program.words).cast("I"),
        storage_by_tensor=memoryview(program.storage_by_tensor).cast("I"),
        signatures=program.signatures,
        deaths=memoryview(program.deaths).cast("I"),
        randomness=lambda: program.randomness,
        find_constant=recorded.find_constant,
    )


class UnknownCallError(Exception):
    """A call cannot be run."""


class ForwardReplay:
    """The storages of a recording as they are before one call; :meth:`run` goes on.

    Attributes:
        memory: The known storages. A call that is not run frees those that it changes.
        blank: Those to which nothing was written.
        is_unwritten: Whether a storage was written by no call before the first that
            was run.
    """

    def __init__(self) -> None:
        self.kept: Kept | None = None
        self.note_chunk: Callable[[], object] = dict  # does nothing
        self.allows: Callable[[int, int], bool] = lambda nbytes, flops: True  # noqa: ARG005
        self.n_calls = self.n_run = self.work = self._work_before = 0
        self._new_nbytes = self._new_work = 0
        self._at = self._n_deaths = 0
        self._calls: list[SmallCall] = []
        self._draws: dict[int, Draw] = {}
        self._columns: ReplayColumns
        self._is_strict = False
        self.clear()

    def move_to(self, n_calls: int, at: int, n_deaths: int) -> None:
        """Continue before a call."""
        self.n_calls, self._at, self._n_deaths = n_calls, at, n_deaths

    def clear(self) -> None:
        """Drop all storages and generators."""
        self.memory = ReplayMemory(Counter[int](), CPU)
        self.blank: set[int] = set()
        self.streams: Streams | None = None
        self._n_draws = 0
        self._changed: set[int] = set()
        self._results: dict[int, dict[int, Tensor]] = {}
        self._shared: dict[int, Tensor] = {}
        self.is_unwritten: Callable[[int], bool] = lambda storage: False  # noqa: ARG005

    def count_kinds(
        self, columns: ReplayColumns, starts: Sequence[int]
    ) -> tuple[int, int]:
        """Return how many of some calls cannot be run, and the work of all."""
        self.learn(columns.signatures)
        counts = np.bincount(np.asarray(columns.words)[np.asarray(starts)])
        pairs = list(zip(self._calls, counts.tolist(), strict=False))
        n_unknown = sum(n for call, n in pairs if call.kind == FORGET)
        return n_unknown, sum(call.work * n for call, n in pairs)

    def learn(self, signatures: Sequence[Signature]) -> None:
        """Decide what is done with the calls of new signatures."""
        self._calls += map(SmallCall, signatures[len(self._calls) :])

    def run(self, columns: ReplayColumns, *, is_strict: bool) -> bool:
        """Run the calls recorded since; return whether all were run, or skipped.

        No mode may intercept torch. If it is strict, it stops before a call that cannot
        be run, instead of dropping the storages that this changes.
        """
        self.learn(columns.signatures)
        self._work_before = self.work
        self._columns = columns
        self._is_strict = is_strict
        try:
            self._run(self._walk(columns.words))
            self._free(self.n_calls)
        except UnknownCallError:
            return False
        except BaseException:  # also an interrupt: a call may be half done
            self.clear()
            raise
        finally:
            del self._columns
            self._draws = {}
        return True

    def read(self, storage: int, columns: ReplayColumns) -> UntypedStorage | None:
        """Return a storage, which must not be written or kept; None if unknown."""
        if storage in self._shared:
            return self._shared[storage].untyped_storage()
        is_known = self.find(storage, columns) and storage not in self.blank
        return cast("UntypedStorage", self.memory.find(storage)) if is_known else None

    def drop(self, storages: Iterable[int]) -> None:
        """Drop storages that were written outside of torch."""
        self.memory.free(storages)
        self._results.clear()

    def separate(self) -> None:
        """Give each result that several calls share a storage of its own."""
        for storage in [*self._shared]:
            self._separate(storage)

    def find(self, storage: int, columns: ReplayColumns) -> bool:
        """Whether a storage is known; loads a constant that no call wrote."""
        if storage in self._shared:
            self._separate(storage)
        if storage in self.memory or storage in self._changed:
            return storage in self.memory
        constant = columns.find_constant(storage)
        if constant is None or not constant.data or constant.sparse is not None:
            return False
        if self.is_unwritten(storage):
            self.memory.add(storage, load_bytes(constant.data))
        return storage in self.memory

    def _walk(self, words: memoryview) -> Rows:
        """Yield the calls from here on that are not skipped, and advance past them.

        ``N[i] += 1`` ends with a copy of ``N[i]`` to itself, which is skipped, too.
        Additions to elements of one storage are run here, many at once. A function of
        one element of a table is computed once, until the table is written.
        """
        calls, at, end, index = self._calls, self._at, len(words), self.n_calls
        storages, shared = self._columns.storage_by_tensor, self._shared
        held, blank, results = self.memory.held, self.blank, self._results
        pending: list[tuple[SmallCall, Tensor | None]] = []
        added_to: tuple[int, object] = (-1, None)
        while at < end:
            call = calls[words[at]]
            if call.kind != PASS and not (
                call.is_copy_of_itself
                and storages[words[at + HEADER]] == storages[words[at + HEADER + 1]]
            ):
                storage = storages[words[at + HEADER]]
                is_known = storage in held and storage not in blank
                if is_known and call.is_of_element and storage != added_to[0]:
                    made = storages[words[at + HEADER + 1]]
                    shared[made] = self._compute_once(call, storage)
                    self.n_run += 1
                else:
                    added = None
                    if is_known and call.added_to and call.added is None:
                        added = shared.get(storages[words[at + HEADER + 1]])
                    is_sum = is_known and (added is not None or call.added is not None)
                    adds_to = (storage, call.added_to) if is_sum else (-1, None)
                    if adds_to != added_to:
                        self._add_up(added_to[0], pending)
                        added_to = adds_to
                    if results:
                        for position in call.changed:
                            results.pop(storages[words[at + HEADER + position]], None)
                    if is_sum:
                        pending.append((call, added))
                    else:
                        yield index, at
            at += call.width
            index += 1
            if not index % N_AT_ONCE:
                self._add_up(added_to[0], pending)
                self._free(index)
                self.note_chunk()
        self._add_up(added_to[0], pending)
        self.n_calls, self._at = index, at

    def _compute_once(self, call: SmallCall, storage: int) -> Tensor:
        """Return what a call computes of an element, and remember it."""
        known = self._results.setdefault(storage, {})
        result = known.get(id(call))
        if result is None:
            element = self.memory.tensor(storage, call.inputs[0])
            (computed,) = tensors_in(call.usage.run([element], CPU, None))
            result = known[id(call)] = computed.clone()  # it may be the element itself
        return result

    def _separate(self, storage: int) -> None:
        """Give a result that several calls share a storage of its own."""
        self.memory.add(storage, self._shared.pop(storage).clone().untyped_storage())

    def _free(self, n_calls: int) -> int:
        """Drop storages that were freed before a call; return the next such call."""
        at, deaths = self._n_deaths, self._columns.deaths
        end = len(deaths)
        while at < end and deaths[at] <= n_calls:
            storage = deaths[at + 1]
            if self._shared.pop(storage, None) is None:
                self.memory.held.pop(storage, None)
                self._results.pop(storage, None)
            at += 2
        self._n_deaths = at
        return deaths[at] if at < end else maxsize

    def _run(self, rows: Rows) -> None:
        """Run calls: the loop that everything else here keeps short."""
        calls, words, blank = self._calls, self._columns.words, self.blank
        held = self.memory.held
        storages = self._columns.storage_by_tensor
        death = self._free(self.n_calls)
        for index, start in rows:
            if death <= index:
                death = self._free(index)
            call = calls[words[start]]
            if call.is_large and not self._has_room(call):
                self.n_calls, self._at = index, start
                raise UnknownCallError
            numbers = [storages[n] for n in words[start + HEADER : start + call.width]]
            tensors: list[Tensor] = []
            if call.kind == RUN and not call.is_random:
                for storage, geometry in zip(numbers, call.inputs):  # noqa: B905  outputs follow in numbers
                    found = held.get(storage)
                    if found is None or storage in blank:
                        break
                    tensor = found.tensors.get(id(geometry))
                    tensors.append(
                        found.view(geometry, CPU) if tensor is None else tensor
                    )
            if len(tensors) < call.n_needed:
                try:
                    self._run_rarely(call, index, numbers)
                except UnknownCallError:
                    self.n_calls, self._at = index, start
                    raise
            else:
                self._take(call, numbers, tensors, call.usage.run(tensors, CPU, None))

    def _add_up(
        self, storage: int, pending: list[tuple[SmallCall, Tensor | None]]
    ) -> None:
        """Add numbers to elements of a storage, one after the other."""
        self.n_run += len(pending)
        self.work += len(pending)
        if len(pending) < MIN_SUM:
            for call, added in pending:
                element = self.memory.tensor(storage, call.inputs[0])
                given = [element] if added is None else [element, added]
                call.usage.run(given, CPU, None)
        elif pending:
            dtype, widest = pending[0][0].added_to
            offsets = [call.inputs[0].storage_offset for call, _ in pending]
            if widest is None:
                numbers = torch.stack(
                    [added for _, added in pending if added is not None]
                )
            else:
                numbers = torch.tensor(
                    [call.added for call, _ in pending], dtype=widest
                )
            whole: Any = torch.empty(0, dtype=dtype)
            whole.set_(self.memory.find(storage))
            whole.index_add_(0, torch.tensor(offsets), numbers.to(dtype))
        pending.clear()

    def _has_room(self, call: SmallCall) -> bool:
        """Whether a large call may run; the slow check of the limits is made rarely."""
        self._new_nbytes += call.nbytes
        self._new_work += call.work
        if self._new_nbytes < MUCH_NBYTES and self._new_work < MUCH_WORK:
            return True
        self._new_nbytes = self._new_work = 0
        return self.allows(
            self.memory.nbytes + call.nbytes,
            self.work + call.work - self._work_before,
        )

    def _take(
        self,
        call: SmallCall,
        numbers: Sequence[int],
        tensors: Sequence[Tensor],
        returned: object,
    ) -> None:
        """Hold the new storages of a call."""
        self.n_run += 1
        self.work += call.work
        if not call.made:
            return
        many = [returned] if isinstance(returned, Tensor) else tensors_in(returned)
        if len(many) != call.n_outputs:
            return
        for position, geometry in call.made:
            storage, made = numbers[position], many[position - len(call.inputs)]
            if made.shape != geometry.shape or made.dtype is not geometry.dtype:
                continue
            if call.is_own:
                held = self.memory.held[storage] = HeldStorage(made.untyped_storage())
                held.tensors[id(geometry)] = made
            else:
                is_own = self.memory.add_output(storage, geometry, made, tensors)
                # Another call of the signature has the same strides.
                call.is_own = is_own and len(call.made) == 1

    def _run_rarely(self, call: SmallCall, index: int, numbers: Sequence[int]) -> None:
        """Run a call that draws, allocates, or lacks an argument."""
        if call.kind == ALLOCATE:
            for position, geometry in call.made:
                self.memory.allocate(numbers[position], geometry)
                self.blank.add(numbers[position])
            return
        tensors = self._find_inputs(call, numbers) if call.kind == RUN else None
        is_drawn = tensors is not None and call.is_random
        draw = self._find_draw(index) if is_drawn else None
        if tensors is None or (draw is None and is_drawn):
            if self._is_strict and call.kind != REAL:
                raise UnknownCallError
            changed = [numbers[position] for position in call.changed]
            self.memory.free(changed)
            self._changed.update(changed)
            for storage in changed:
                self._shared.pop(storage, None)
            return
        self.blank.difference_update(numbers[position] for position in call.writes)
        if draw is None or self.streams is None:
            returned = call.usage.run(tensors, CPU, None)
        else:
            returned = call.usage.run(tensors, CPU, self.streams.prepare(draw, CPU))
            self.streams.note(draw)
        self._take(call, numbers, tensors, returned)

    def _find_inputs(
        self, call: SmallCall, numbers: Sequence[int]
    ) -> list[Tensor] | None:
        """Return the tensor arguments of a call; None if one is not known."""
        tensors: list[Tensor] = []
        inputs = numbers[: len(call.inputs)]
        pairs = zip(inputs, call.inputs, strict=True)
        for position, (storage, geometry) in enumerate(pairs):
            if not self.find(storage, self._columns):
                return None
            if storage in self.blank and not (
                inputs.count(storage) == 1
                and call.usage.fills(position, self.memory.held[storage].nbytes)
            ):
                return None
            tensors.append(self.memory.tensor(storage, geometry))
        return tensors

    def _find_draw(self, index: int) -> Draw | None:
        """Return the draw of a call, if the state of its generator is known."""
        if index not in self._draws:
            randomness = self._columns.randomness()
            if self.streams is None:
                self.streams = Streams(randomness, (), (), CPU, self.kept)
            self.streams.update(randomness)
            drawn = read_draws(randomness, self._n_draws)
            self._draws = {draw.call: draw for draw in drawn if draw.call >= index}
        draw = self._draws.get(index)
        if draw is None or self.streams is None or not self.streams.can_reach(draw):
            return None
        self._n_draws = draw.number
        return draw
