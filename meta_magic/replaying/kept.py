"""What replays of a program keep for the next one to go on from.

Without it, ``loss.item()`` in each step of a training would replay all steps before.
:class:`Kept` has the contents of storages and the states of generators,
:class:`RawMemory` which bytes of a storage were written. Finished recordings keep
theirs for as long as the recording lives: :func:`find_kept`.
"""

import weakref
from collections.abc import Collection, Iterable, Mapping
from functools import partial
from math import prod
from typing import Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
from torch import Tensor, UntypedStorage

from meta_magic.recording.identities.origins import living_of
from meta_magic.replaying.operators import is_dense
from meta_magic.torch_private.interrupts import unbroken
from meta_magic.trace.program import Program
from meta_magic.trace.signature import Geometry, span_nbytes

Bytes: TypeAlias = npt.NDArray[np.bool_]


class RawMemory:
    """Which bytes of a storage were written.

    Args:
        nbytes: How many it has.
        is_written: Whether all of them are.
        is_tainted: Whether they were computed from what lay in memory.

    Attributes:
        is_tainted: Whether some were, at some time.
    """

    def __init__(
        self, nbytes: int, *, is_written: bool = False, is_tainted: bool = False
    ) -> None:
        self.is_tainted = is_tainted
        self._nbytes = nbytes
        self._written: Bytes | None = None
        self._is_whole = is_written or nbytes == 0

    def copy(self, nbytes: int) -> "RawMemory":
        """Return another that is the same; none is written if it has other bytes."""
        made = RawMemory(nbytes, is_tainted=self.is_tainted)
        if nbytes == self._nbytes:
            made._is_whole = self._is_whole
            made._written = None if self._written is None else self._written.copy()
        return made

    @property
    def is_written(self) -> bool:
        """Whether all of it is written."""
        if self._written is not None and self._written.all():
            self._written, self._is_whole = None, True
        return self._is_whole

    def holds(self, geometry: Geometry) -> bool:
        """Whether all elements of a tensor are written."""
        if self._is_whole or not prod(geometry.shape):
            return True
        if self._written is None:
            return False
        elements = view(self._written, geometry)
        return elements is not None and bool(elements.all())

    def find_written(self, geometry: Geometry) -> Bytes:
        """Return which elements of a tensor are written."""
        if self._written is None:
            return np.full(geometry.shape, self._is_whole, np.bool_)
        elements = view(self._written, geometry)
        if elements is None or not prod(geometry.shape):
            return np.full(geometry.shape, fill_value=False)
        return np.asarray(elements.all(axis=-1))

    def write(self, geometry: Geometry) -> None:
        """Write the elements of a tensor."""
        is_whole = is_dense(geometry) and span_nbytes(geometry) == self._nbytes
        if is_whole or geometry.storage_offset is None:
            self._written, self._is_whole = None, True
        elif not self._is_whole:
            self._mark(geometry, is_written=True)

    def write_some(self, geometry: Geometry, which: Bytes) -> None:
        """Write some elements of a tensor.

        Args:
            geometry: The tensor's.
            which: Which of them.
        """
        if self._written is None:
            self._written = np.full(self._nbytes, self._is_whole, np.bool_)
        elements = view(self._written, geometry)
        if elements is not None:
            elements[which] = True

    def taint(self, geometry: Geometry) -> None:
        """Write what was computed from what lay in memory over the elements."""
        self.is_tainted = True
        self._mark(geometry, is_written=False)

    def leave_out_gaps(self, geometry: Geometry) -> None:
        """Take what lies between the elements of the only tensor for written."""
        self._is_whole = True
        self._mark(geometry, is_written=False)

    def _mark(self, geometry: Geometry, *, is_written: bool) -> None:
        if self._written is None:
            self._written = np.full(self._nbytes, self._is_whole, np.bool_)
        self._is_whole = False
        elements = view(self._written, geometry)
        if elements is not None:
            elements[...] = is_written
        elif not is_written:
            self._written[...] = False


def view(written: Bytes, geometry: Geometry) -> Bytes | None:
    """Return the bytes of a tensor's elements; None if they have no places."""
    stride, offset, itemsize = (
        geometry.stride,
        geometry.storage_offset,
        geometry.dtype.itemsize,
    )
    if stride is None or offset is None:
        return None
    if not prod(geometry.shape):
        return written[:0]
    return np.lib.stride_tricks.as_strided(
        written[offset * itemsize :],
        (*geometry.shape, itemsize),
        (*(step * itemsize for step in stride), 1),
    )


MAX_STATES: Final = 64
"""Of one generator; and how many generators."""


class Content(NamedTuple):
    """What a storage held after some calls.

    Attributes:
        real: The bytes.
        last_call: The last call that made or wrote them; -1 before all.
        is_assumed: Whether they rest on what was assumed.
        raw: Which of them were written, if not all.
    """

    real: UntypedStorage
    last_call: int
    is_assumed: bool
    raw: RawMemory | None = None


class Kept:
    """Contents of storages and states of generators, each true on its own.

    A replay takes out what it will write, and puts back what it made: one that fails
    or is interrupted leaves less, and nothing wrong.

    Attributes:
        nbytes: The bytes that it has of all storages.
        is_brought_on: Whether the loops of the recording were run, once it was over.
    """

    def __init__(self) -> None:
        self._contents: dict[int, Content] = {}
        self._last_calls: dict[int, int] = {}
        self._assumed: set[int] = set()
        self.nbytes = 0
        self.is_brought_on = False
        self._states: dict[int, dict[int, Tensor]] = {}

    def __contains__(self, storage: int) -> bool:
        return storage in self._contents

    @property
    def storages(self) -> Collection[int]:
        """The storages of which it has the content."""
        return self._contents.keys()

    def nbytes_of(self, storages: Iterable[int]) -> int:
        """Return the bytes that it has of some storages."""
        known = self._contents
        return sum(known[s].real.nbytes() for s in storages if s in known)

    @property
    def draws(self) -> set[int]:
        """The draws that are known to have left a generator of the CPU in a state."""
        return {draw for states in self._states.values() for draw in states}

    def state_after(self, draw: int) -> Tensor | None:
        """Return the state in which a draw left its generator, if that is known."""
        return next((s[draw] for s in self._states.values() if draw in s), None)

    def list_contents(self, *, can_assume: bool) -> Mapping[int, int]:
        """Return the storages that it has, and the last call that made or wrote each.

        Args:
            can_assume: Whether also those that rest on what was assumed.
        """
        calls = self._last_calls
        if can_assume or not self._assumed:
            return calls
        return {s: call for s, call in calls.items() if s not in self._assumed}

    def is_assumed(self, storage: int) -> bool:
        """Whether a kept content rests on what was assumed."""
        return storage in self._assumed

    def find_raw(self, storages: Iterable[int]) -> dict[int, RawMemory]:
        """Return those of some storages of which not all was written."""
        found = ((s, self._contents[s].raw) for s in storages)
        return {s: raw for s, raw in found if raw is not None}

    def find(self, storage: int) -> UntypedStorage:
        """Return a content."""
        return self._contents[storage].real

    @unbroken
    def take(self, storage: int) -> UntypedStorage:
        """Hand a content over, and forget it."""
        content = self._contents.pop(storage)
        del self._last_calls[storage]
        self._assumed.discard(storage)
        self.nbytes -= content.real.nbytes()
        return content.real

    @unbroken
    def put(self, storage: int, content: Content) -> None:
        """Take a content in, unless there is a later one."""
        known = self._contents.get(storage)
        if known is None or known.last_call <= content.last_call:
            self.drop([storage])
            self._contents[storage] = content
            self._last_calls[storage] = content.last_call
            self.nbytes += content.real.nbytes()
            if content.is_assumed:
                self._assumed.add(storage)

    def put_state(self, generator: int, draw: int, state: Tensor) -> None:
        """Take in where a draw left its generator; of the oldest some are dropped."""
        states = self._states.pop(generator, {})
        self._states[generator] = states  # now the last one that was used
        states[draw] = state
        for crowd in (states, self._states):
            while len(crowd) > MAX_STATES:
                del crowd[next(iter(crowd))]

    def drop(self, storages: Iterable[int]) -> None:
        """Forget the contents of some storages."""
        for storage in storages:
            if storage in self._contents:
                self.take(storage)

    def drop_states(self) -> None:
        """Forget the states of generators but the last of each."""
        for states in self._states.values():
            for draw in [*states][:-1]:
                del states[draw]

    def drop_others(self, storages: Collection[int]) -> None:
        """Forget all contents but those of some storages."""
        self.drop([storage for storage in self._contents if storage not in storages])


kept_by_program: dict[int, tuple[weakref.ref[Program], Kept]] = {}


def keep_for(program: Program, kept: Kept) -> None:
    """Keep what replays left of a recording that is finished."""
    key = id(program)
    # A callback written in Python would swallow an interrupt.
    forget = partial(kept_by_program.pop, key)
    kept_by_program[key] = weakref.ref(program, forget), kept


def find_kept(program: Program) -> Kept:
    """Return what replays left of a finished recording, and will."""
    if id(program) not in kept_by_program:
        keep_for(program, Kept())
    return kept_by_program[id(program)][1]


def forget_unreachable() -> None:
    """Forget what no later recording can ask for: a later one has its tensors."""
    for ref, kept in [*kept_by_program.values()]:
        program = ref()
        if program is not None:
            kept.drop_others(living_of(program))
            kept.drop_states()
