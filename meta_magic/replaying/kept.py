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

from meta_magic.recording.identities.origins import live_storages_of
from meta_magic.replaying.operators import is_dense
from meta_magic.torch_private.interrupts import uninterrupted
from meta_magic.trace.program import Program
from meta_magic.trace.signature import Geometry, span_nbytes

Bytes: TypeAlias = npt.NDArray[np.bool_]


class RawMemory:
    """Which bytes of a storage were written; the others are uninitialized."""

    def __init__(
        self, nbytes: int, *, is_written: bool = False, is_tainted: bool = False
    ) -> None:
        self.is_tainted = is_tainted
        self._nbytes = nbytes
        self._written: Bytes | None = None
        self._is_whole = is_written or nbytes == 0

    def copy(self, nbytes: int) -> "RawMemory":
        """Return a copy; with another count of bytes, none of them is written."""
        made = RawMemory(nbytes, is_tainted=self.is_tainted)
        if nbytes == self._nbytes:
            made._is_whole = self._is_whole
            made._written = None if self._written is None else self._written.copy()
        return made

    @property
    def is_written(self) -> bool:
        """Whether all bytes are written."""
        if self._written is not None and self._written.all():
            self._written, self._is_whole = None, True
        return self._is_whole

    @property
    def is_blank(self) -> bool:
        """Whether no byte is written."""
        return self._written is None and not self._is_whole

    def holds(self, geometry: Geometry) -> bool:
        """Whether all elements of a tensor are written."""
        if self._is_whole or not prod(geometry.shape):
            return True
        if self._written is None:
            return False
        elements = _view_bytes(self._written, geometry)
        return elements is not None and bool(elements.all())

    def find_written(self, geometry: Geometry) -> Bytes:
        """Return which elements of a tensor are written."""
        if self._written is None:
            return np.full(geometry.shape, self._is_whole, np.bool_)
        elements = _view_bytes(self._written, geometry)
        if elements is None or not prod(geometry.shape):
            return np.full(geometry.shape, fill_value=False)
        return np.asarray(elements.all(axis=-1))

    def write(self, geometry: Geometry) -> None:
        """Write the elements of a tensor."""
        if geometry.storage_offset is None:
            self._written, self._is_whole = None, True
        elif not self._is_whole:
            self._mark(geometry, is_written=True)

    def write_some(self, geometry: Geometry, which: Bytes) -> None:
        """Write the elements of a tensor where ``which`` is true."""
        if self._written is None:
            self._written = np.full(self._nbytes, self._is_whole, np.bool_)
        elements = _view_bytes(self._written, geometry)
        if elements is not None:
            elements[which] = True

    def erase(self, geometry: Geometry) -> None:
        """Overwrite the elements of a tensor with uninitialized ones."""
        self._mark(geometry, is_written=False)

    def _mark(self, geometry: Geometry, *, is_written: bool) -> None:
        if is_dense(geometry) and span_nbytes(geometry) == self._nbytes:
            self._written, self._is_whole = None, is_written  # needs no mask
            return
        if self._written is None:
            self._written = np.full(self._nbytes, self._is_whole, np.bool_)
        self._is_whole = False
        elements = _view_bytes(self._written, geometry)
        if elements is not None:
            elements[...] = is_written
        elif not is_written:
            self._written[...] = False


def _view_bytes(written: Bytes, geometry: Geometry) -> Bytes | None:
    """Return the bytes of a tensor's elements; None for a tensor without strides."""
    stride, offset = geometry.stride, geometry.storage_offset
    itemsize = geometry.dtype.itemsize
    if stride is None or offset is None:
        return None
    if not prod(geometry.shape):
        return written[:0]
    return np.lib.stride_tricks.as_strided(
        written[offset * itemsize :],
        (*geometry.shape, itemsize),
        (*(step * itemsize for step in stride), 1),
    )


MAX_STATES: Final = 64  # kept states of one generator, and generators with kept states


class Content(NamedTuple):
    """The content of a storage after its last call; -1 if none made or wrote it."""

    real: UntypedStorage
    last_call: int
    is_assumed: bool
    raw: RawMemory | None = None


class Kept:
    """Contents of storages and states of generators, each valid on its own.

    A replay takes contents out before it writes them, and puts results back: after an
    error or an interrupt fewer contents are kept, and no wrong ones.
    """

    def __init__(self) -> None:
        self._contents: dict[int, Content] = {}
        self._last_calls: dict[int, int] = {}
        self._assumed: set[int] = set()
        self.nbytes = 0
        self.has_run_loops = False
        self._states: dict[int, dict[int, Tensor]] = {}

    @property
    def storages(self) -> Collection[int]:
        """The storages with a kept content."""
        return self._contents.keys()

    def nbytes_of(self, storages: Iterable[int]) -> int:
        """Return the kept bytes of some storages."""
        known = self._contents
        return sum(known[s].real.nbytes() for s in storages if s in known)

    @property
    def draws(self) -> set[int]:
        """The draws after which the state of a CPU generator is kept."""
        return {draw for states in self._states.values() for draw in states}

    def state_after(self, draw: int) -> Tensor | None:
        """Return the state of a generator after a draw, if it is kept."""
        return next((s[draw] for s in self._states.values() if draw in s), None)

    def list_contents(self, *, can_assume: bool) -> Mapping[int, int]:
        """Return the kept storages, each with the last call that made or wrote it."""
        calls = self._last_calls
        if can_assume or not self._assumed:
            return calls
        return {s: call for s, call in calls.items() if s not in self._assumed}

    def is_assumed(self, storage: int) -> bool:
        """Whether a kept content rests on assumed values."""
        return storage in self._assumed

    def find_raw(self, storages: Iterable[int]) -> dict[int, RawMemory]:
        """Return the storages, of some, that have uninitialized bytes."""
        found = ((s, self._contents[s].raw) for s in storages)
        return {s: raw for s, raw in found if raw is not None}

    def find(self, storage: int) -> UntypedStorage:
        """Return the content of a storage; not to be written."""
        return self._contents[storage].real

    @uninterrupted
    def take(self, storage: int) -> UntypedStorage:
        """Remove a content and return it."""
        content = self._contents.pop(storage)
        del self._last_calls[storage]
        self._assumed.discard(storage)
        self.nbytes -= content.real.nbytes()
        return content.real

    @uninterrupted
    def put(self, storage: int, content: Content) -> None:
        """Keep a content, unless a later one is kept."""
        known = self._contents.get(storage)
        if known is None or known.last_call <= content.last_call:
            self.drop([storage])
            self._contents[storage] = content
            self._last_calls[storage] = content.last_call
            self.nbytes += content.real.nbytes()
            if content.is_assumed:
                self._assumed.add(storage)

    def put_state(self, generator: int, draw: int, state: Tensor) -> None:
        """Keep the state of a generator after a draw; the oldest states are dropped."""
        states = self._states.pop(generator, {})
        self._states[generator] = states  # the most recently used one is the last
        states[draw] = state
        for crowd in (states, self._states):
            while len(crowd) > MAX_STATES:
                del crowd[next(iter(crowd))]

    def drop(self, storages: Iterable[int]) -> None:
        """Invalidate the contents of some storages."""
        for storage in storages:
            if storage in self._contents:
                self.take(storage)

    def drop_states(self) -> None:
        """Drop all states but the last one of each generator."""
        for states in self._states.values():
            for draw in [*states][:-1]:
                del states[draw]


kept_by_program: dict[int, tuple[weakref.ref[Program], Kept]] = {}


def keep_for(program: Program, kept: Kept) -> None:
    """Keep the results of replays for as long as a finished recording lives."""
    key = id(program)
    # Not a lambda: an interrupt inside of a Python callback would be lost.
    forget = partial(kept_by_program.pop, key)
    kept_by_program[key] = weakref.ref(program, forget), kept


def find_kept(program: Program) -> Kept:
    """Return what is kept of a finished recording; empty if it was not replayed."""
    if id(program) not in kept_by_program:
        keep_for(program, Kept())
    return kept_by_program[id(program)][1]


def forget_unreachable() -> None:
    """Drop contents of storages without a live tensor: nobody can ask for them."""
    for ref, kept in [*kept_by_program.values()]:
        program = ref()
        if program is not None:
            kept.drop({*kept.storages} - live_storages_of(program))
            kept.drop_states()
