"""Replay a loop of small calls forward, because a plan for each value is slow.

A plan follows each value back, call by call. ``N[i, j] += 1`` in a loop of 200,000
turns, or ``loss.item()`` in each step, needs nearly all calls anyway: they are run in
their recorded order, with no decision for each call. If a call cannot be run, the
storages that it writes are dropped; a plan makes them when they are wanted. What is
done with the calls of a signature is decided once (:func:`make_small_call`): to decide
it for each call would take longer than the calls. Read :meth:`ForwardReplay.run` first.
"""

from collections.abc import Callable, Iterator, Sequence
from enum import IntEnum
from sys import maxsize
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

import numpy as np
import torch
from torch import Tensor, UntypedStorage

from meta_magic.errors import ReplayError
from meta_magic.recording.identities.nested_tensors import tensors_in
from meta_magic.replaying.call_runner import allocate, lay_out, load_bytes, make_view
from meta_magic.replaying.operators import Usage
from meta_magic.replaying.program_calls import Draw, ProgramCalls, read_draws
from meta_magic.replaying.special_operators import make_operator
from meta_magic.replaying.streams import Streams
from meta_magic.trace.program import HEADER, Randomness
from meta_magic.trace.program_facts import Constant
from meta_magic.trace.signature import (
    Geometry,
    Signature,
    span_nbytes,
)

if TYPE_CHECKING:
    from meta_magic.replaying.kept import Kept

CPU: Final = torch.device("cpu")

LARGE_NBYTES: Final = 2**20
LARGE_WORK: Final = 2**24
"""A call that changes more bytes, or takes more operations, is large: it is checked
against the limits."""

MAX_VIEWS: Final = 2**12
"""Cached tensors on one storage, such as the elements of a table."""


VIEWS_IN_PLACE: Final = frozenset(
    f"aten.{name}"
    for name in (
        *("as_strided_.default", "detach_.default", "squeeze_.default"),
        *("squeeze_.dim", "squeeze_.dims", "swapaxes_.default", "swapdims_.default"),
        *("t_.default", "transpose_.default", "unsqueeze_.default"),
    )
)
"""Operators that change only the metadata of a tensor, not its storage."""


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


class Held:
    """A real storage of a forward replay."""

    __slots__ = ("is_blank", "nbytes", "real", "tensors")

    def __init__(self, real: UntypedStorage, *, is_blank: bool = False) -> None:
        self.real = real
        self.nbytes = real.nbytes()
        self.is_blank = is_blank
        self.tensors: dict[int, Tensor] = {}

    def view(self, shape: "Shape") -> Tensor:
        """Return a tensor on the storage."""
        if shape.nbytes > self.nbytes:
            raise ReplayError("a tensor is larger than its storage was so far")
        if len(self.tensors) == MAX_VIEWS:
            self.tensors.clear()
        tensor = self.tensors[shape.number] = make_view(self.real, shape.geometry)
        return tensor


class Shape(NamedTuple):
    """A geometry, its number, and the bytes that it spans."""

    number: int
    geometry: Geometry
    nbytes: int


class SmallCall:
    """What a forward replay does with the calls of one signature.

    Attributes:
        made: Index and shape of each output with a new storage.
        n_needed: How many tensors the quick way needs; one more than there are, which
            switches it off, for calls that draw or are not run.
        changed: Indices, among all tensors of a row, of new and written storages.
        is_copy_of_itself: Whether it copies between tensors of the same geometry.
        is_large: Whether it is checked against the limits.
        usage: How the operator uses its tensors; None unless the calls are run.
    """

    def __init__(self, signature: Signature, numbers: dict[Geometry, int]) -> None:
        def shape_of(geometry: Geometry) -> Shape:
            number = numbers.setdefault(geometry, len(numbers))
            return Shape(number, geometry, span_nbytes(geometry))

        n_inputs = len(signature.inputs)
        made = [i for i, viewed in enumerate(signature.views) if viewed is None]
        self.op = signature.op
        self.width = HEADER + n_inputs + len(signature.outputs)
        self.inputs = tuple(map(shape_of, signature.inputs))
        self.made = tuple((i, shape_of(signature.outputs[i])) for i in made)
        self.writes = signature.writes
        self.changed = (*signature.writes, *(n_inputs + i for i in made))
        self.kind = CallKind.FORGET
        self.is_random = self.is_large = False
        self.n_needed = n_inputs + 1
        self.work = self.nbytes = 0
        self._is_known = False
        self.usage: Any = None
        self.is_copy_of_itself = (
            signature.op == "aten.copy_.default"
            and self.inputs[0].number == self.inputs[1].number
        )

    def prepare(self, usage: Usage) -> None:
        """Prepare to run the calls."""
        operator = usage.operator
        self.usage, self.is_random = usage, operator.is_random
        self.kind = CallKind.ALLOCATE if operator.is_empty else CallKind.RUN
        self.work = usage.work
        changed = (*self.inputs, *(shape for _, shape in self.made))
        most = max((shape.nbytes for shape in changed), default=0)
        self.nbytes = sum(shape.nbytes for _, shape in self.made)
        self.is_large = most > LARGE_NBYTES or self.work > LARGE_WORK
        if self.kind == CallKind.RUN and not self.is_random:
            self.n_needed = len(self.inputs)

    def keep(
        self, tensor: Tensor, shape: Shape, inputs: Sequence[Tensor]
    ) -> Tensor | None:
        """Return an output with its recorded metadata, on a storage of its own."""
        geometry = shape.geometry
        if tensor.shape != geometry.shape or tensor.dtype is not geometry.dtype:
            return None
        if self._is_known:
            return tensor
        kept = lay_out(tensor, geometry, shape.nbytes, inputs, CPU)
        # Another call of the signature has the same strides.
        self._is_known = kept is tensor and len(self.made) == 1
        return kept


def make_small_call(signature: Signature, numbers: dict[Geometry, int]) -> SmallCall:
    """Decide what is done with the calls of a signature; number its geometries."""
    call = SmallCall(signature, numbers)
    op = signature.op
    made = [signature.outputs[i] for i, _ in call.made]
    if call.width == HEADER or op in VIEWS_IN_PLACE:  # no tensors: the profiler's
        call.kind = CallKind.PASS
    elif not op.startswith("aten."):  # a custom schema may hide writes
        call.changed = tuple(range(call.width - HEADER))
    else:
        made += [signature.inputs[i] for i in signature.writes]
        if not made:  # a view, or a value that the cell reads
            call.kind = CallKind.PASS
        elif signature.writes and all(g.device.type != "meta" for g in made):
            call.kind = CallKind.REAL
        elif all(map(is_plain, (*signature.inputs, *signature.outputs))):
            usage = find_usage(signature)
            if usage is not None:
                call.prepare(usage)
    return call


def find_usage(signature: Signature) -> Usage | None:
    """Return how an operator uses its tensors; None if it cannot be run forward."""
    try:
        usage = Usage(signature, make_operator(signature))
    except ReplayError:
        return None
    operator = usage.operator
    is_other = operator.lays_out_anew and not keeps_layout(signature)
    return None if is_other or operator.is_setting else usage


def keeps_layout(signature: Signature) -> bool:
    """Whether a call returns all that it writes, as it was: no ``out=`` grew."""
    return tuple(signature.inputs[i] for i in signature.writes) == signature.outputs


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


class Columns(NamedTuple):
    """The columns of a program that a forward replay reads."""

    words: memoryview
    storage_by_tensor: Sequence[int]
    signatures: Sequence[Signature]
    deaths: Sequence[int]
    randomness: Callable[[], Randomness]
    find_constant: Callable[[int], Constant | None]


def columns_of(recorded: ProgramCalls) -> Columns:
    """Return the columns of a program."""
    program = recorded.program
    return Columns(
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
        held: The known storages. A call that is not run removes those that it changes.
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
        self._numbers: dict[Geometry, int] = {}
        self._calls: list[SmallCall] = []
        self._draws: dict[int, Draw] = {}
        self._columns: Columns
        self._is_strict = False
        self.clear()

    def move_to(self, n_calls: int, at: int, n_deaths: int) -> None:
        """Continue before a call."""
        self.n_calls, self._at, self._n_deaths = n_calls, at, n_deaths

    def clear(self) -> None:
        """Drop all storages and generators."""
        self.held: dict[int, Held] = {}
        self.streams: Streams | None = None
        self._n_draws = 0
        self._changed: set[int] = set()
        self.is_unwritten: Callable[[int], bool] = lambda storage: False  # noqa: ARG005

    def count_kinds(self, columns: Columns, starts: Sequence[int]) -> tuple[int, int]:
        """Return how many of some calls cannot be run, and the work of all."""
        self.learn(columns.signatures)
        counts = np.bincount(np.asarray(columns.words)[np.asarray(starts)])
        pairs = list(zip(self._calls, counts.tolist(), strict=False))
        n_unknown = sum(n for call, n in pairs if call.kind == FORGET)
        return n_unknown, sum(call.work * n for call, n in pairs)

    def learn(self, signatures: Sequence[Signature]) -> None:
        """Decide what is done with the calls of new signatures."""
        for signature in signatures[len(self._calls) :]:
            self._calls.append(make_small_call(signature, self._numbers))

    def run(self, columns: Columns, *, is_strict: bool) -> bool:
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

    def find(self, storage: int, columns: Columns) -> Held | None:
        """Return a storage; a constant that no call wrote is loaded when it is read."""
        content = self.held.get(storage)
        if content is not None or storage in self._changed:
            return content
        constant = columns.find_constant(storage)
        if constant is None or not constant.data or constant.sparse is not None:
            return None
        if not self.is_unwritten(storage):
            return None
        content = self.held[storage] = Held(load_bytes(constant.data))
        return content

    def _walk(self, words: memoryview) -> Rows:
        """Yield the calls from here on that are not skipped, and advance past them.

        ``N[i] += 1`` ends with a copy of ``N[i]`` to itself, which is skipped, too.
        """
        calls, at, end, index = self._calls, self._at, len(words), self.n_calls
        storages = self._columns.storage_by_tensor
        while at < end:
            call = calls[words[at]]
            if call.kind != PASS:
                to = at + HEADER
                if not call.is_copy_of_itself or (
                    storages[words[to]] != storages[words[to + 1]]
                ):
                    yield index, at
            at += call.width
            index += 1
            if not index % N_AT_ONCE:
                self.note_chunk()
        self.n_calls, self._at = index, at

    def _free(self, n_calls: int) -> int:
        """Drop storages that were freed before a call; return the next such call."""
        at, deaths = self._n_deaths, self._columns.deaths
        end = len(deaths)
        while at < end and deaths[at] <= n_calls:
            self.held.pop(deaths[at + 1], None)
            at += 2
        self._n_deaths = at
        return deaths[at] if at < end else maxsize

    def _run(self, rows: Rows) -> None:
        """Run calls: the loop that everything else here keeps short."""
        calls, held, words = self._calls, self.held, self._columns.words
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
                for storage, shape in zip(numbers, call.inputs):  # noqa: B905  outputs follow in numbers
                    content = held.get(storage)
                    if content is None or content.is_blank:
                        break
                    tensor = content.tensors.get(shape.number)
                    tensors.append(content.view(shape) if tensor is None else tensor)
            if len(tensors) < call.n_needed:
                try:
                    self._run_rarely(call, index, numbers)
                except UnknownCallError:
                    self.n_calls, self._at = index, start
                    raise
            else:
                self._take(call, numbers, tensors, call.usage.run(tensors, CPU, None))

    def _has_room(self, call: SmallCall) -> bool:
        """Whether a large call may run; the slow check of the limits is made rarely."""
        self._new_nbytes += call.nbytes
        self._new_work += call.work
        if self._new_nbytes < MUCH_NBYTES and self._new_work < MUCH_WORK:
            return True
        self._new_nbytes = self._new_work = 0
        nbytes = sum(content.nbytes for content in self.held.values())
        return self.allows(
            nbytes + call.nbytes, self.work + call.work - self._work_before
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
        n_inputs = len(call.inputs)
        is_whole = len(many) == len(numbers) - n_inputs
        for position, shape in call.made:
            storage = numbers[n_inputs + position]
            tensor = call.keep(many[position], shape, tensors) if is_whole else None
            if tensor is None:
                self.held.pop(storage, None)
                continue
            content = self.held[storage] = Held(tensor.untyped_storage())
            content.tensors[shape.number] = tensor

    def _run_rarely(self, call: SmallCall, index: int, numbers: Sequence[int]) -> None:
        """Run a call that draws, allocates, or lacks an argument."""
        if call.kind == ALLOCATE:
            for position, shape in call.made:
                blank = Held(allocate(shape.nbytes, CPU), is_blank=True)
                self.held[numbers[len(call.inputs) + position]] = blank
            return
        tensors = self._find_inputs(call, numbers) if call.kind == RUN else None
        is_drawn = tensors is not None and call.is_random
        draw = self._find_draw(index) if is_drawn else None
        if tensors is None or (draw is None and is_drawn):
            if self._is_strict and call.kind != REAL:
                raise UnknownCallError
            for position in call.changed:
                self.held.pop(numbers[position], None)
                self._changed.add(numbers[position])
            return
        for position in call.writes:
            self.held[numbers[position]].is_blank = False
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
        for position, (storage, shape) in enumerate(
            zip(inputs, call.inputs, strict=True)
        ):
            content = self.find(storage, self._columns)
            if content is None:
                return None
            if content.is_blank and not (
                inputs.count(storage) == 1
                and call.usage.fills(position, content.nbytes)
            ):
                return None
            tensor = content.tensors.get(shape.number)
            tensors.append(content.view(shape) if tensor is None else tensor)
        return tensors

    def _find_draw(self, index: int) -> Draw | None:
        """Return the draw of a call, if the state of its generator is known."""
        if index not in self._draws:
            randomness = self._columns.randomness()
            if self.streams is None:
                self.streams = Streams(randomness, (), (), CPU)
                self.streams.use_kept(self.kept, keeps=False)
            self.streams.update(randomness)
            drawn = read_draws(randomness, self._n_draws)
            self._draws = {draw.call: draw for draw in drawn if draw.call >= index}
        draw = self._draws.get(index)
        if draw is None or self.streams is None or not self.streams.can_reach(draw):
            return None
        self._n_draws = draw.number
        return draw
