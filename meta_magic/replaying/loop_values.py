"""Values of a recording that runs loops of small calls: when they are run forward.

Counting pairs in Python is 200,000 calls, of which a plan would decide one by one.
A loss that is read in each step of a loop is a plan for each. Read
:meth:`LoopValues.bring_on` first.
"""

from collections.abc import Callable
from typing import Final

from torch import Tensor, UntypedStorage

from meta_magic.errors import ReplayError
from meta_magic.replaying.flags_in_force import needs_flags
from meta_magic.replaying.forward_replay import Columns, ForwardReplay
from meta_magic.replaying.kept import Content, Kept
from meta_magic.replaying.memory import make_view
from meta_magic.replaying.program_calls import ProgramCalls
from meta_magic.replaying.small_calls import Held
from meta_magic.trace.provenance import Evaluation, ValueLimits
from meta_magic.trace.signature import Geometry

__all__ = ["LoopValues"]

MIN_CALLS: Final = 2**12
"""Calls that are run forward at once, without values being read between them."""

MIN_REPEATS: Final = 8
"""How often calls are alike in a loop, on average."""

MIN_VALUES: Final = 4
"""Values that were read one after the other, few calls apart, before a loop is seen."""

MAX_MISSED: Final = 8
"""Values in a row that a forward replay did not have before it is given up."""

FindOuter = Callable[[ProgramCalls, int], UntypedStorage | None]
"""Returns a storage that no call made."""


class LoopValues:
    """Runs the small calls of a recording forward, once they are seen to be a loop.

    Args:
        kept: What replays of the recording left.

    Attributes:
        is_live: Whether it holds what was kept, and goes on from there.
    """

    def __init__(self, kept: Kept) -> None:
        self.is_live = False
        self._kept = kept
        self._forward = ForwardReplay(kept)
        self._n_values = self._n_missed = 0
        self._n_torn = 0

    def bring_on(
        self, recorded: ProgramCalls, limits: ValueLimits, find_outer: FindOuter
    ) -> int:
        """Run what can be run forward, and put all that is held to what is kept.

        Where torch does as it is told.

        Args:
            recorded: All that was recorded so far.
            limits: What it may take.
            find_outer: Finds what came from outside.

        Returns:
            How many calls were run.
        """
        forward, start = self._forward, self._forward.n_calls
        columns, before = read_columns(recorded), forward.n_run
        program = recorded.program
        is_plain = not program.assumptions and not needs_flags(program)
        if self.is_live:
            for storage in program.torn:
                forward.held.pop(storage, None)
            try:
                if is_plain:
                    forward.run(columns, recorded.program.offsets, is_strict=True)
            except (ReplayError, RuntimeError, LookupError, TypeError, ValueError):
                pass  # a plan says what failed
        elif is_plain and self._is_loop(recorded, columns, limits):
            self._take(recorded, start)
            forward.stand_at(start, program.offsets[start], 0)
            storages: dict[int, None] = {}

            def find(storage: int, index: int) -> UntypedStorage | None:
                is_outer = recorded.births[storage] < 0 and storage not in storages
                storages[storage] = None
                if not is_outer or recorded.writers.find_last(storage, index) >= 0:
                    return None
                return find_outer(recorded, storage)

            try:
                forward.run(columns, program.offsets, find, is_strict=False)
            except (ReplayError, RuntimeError, LookupError, TypeError, ValueError):
                pass
        self.give_back(recorded)
        return forward.n_run - before

    def _is_loop(
        self, recorded: ProgramCalls, columns: Columns, limits: ValueLimits
    ) -> bool:
        """Whether the calls since the last value are many, small, and much alike."""
        start, offsets = self._forward.n_calls, recorded.program.offsets
        n_calls = len(recorded) - start
        if n_calls < max(MIN_CALLS, MIN_REPEATS * len(columns.signatures)):
            return False
        n_unknown, work = self._forward.count_kinds(columns, offsets[start:-1])
        return n_unknown * MIN_REPEATS < n_calls and work <= limits.flops

    def note_value(self, recorded: ProgramCalls, *, is_missed: bool) -> None:
        """Note that a value was read, of all that is recorded; go on from there.

        Args:
            recorded: All that was recorded so far.
            is_missed: Whether a plan was needed for it.
        """
        forward, end = self._forward, len(recorded)
        start, forward.n_calls = forward.n_calls, end
        self._n_missed = self._n_missed + 1 if is_missed else 0
        self._n_values = self._n_values + 1 if end - start < MIN_CALLS else 0
        if self._n_values < MIN_VALUES or self._n_missed > MAX_MISSED + MIN_VALUES:
            return
        program, columns = recorded.program, read_columns(recorded)
        if program.assumptions or needs_flags(program):
            return
        if forward.count_kinds(columns, program.offsets[start:-1])[0]:
            return
        self._take(recorded, end)
        forward.stand_at(end, program.offsets[end], len(columns.deaths))
        self._n_torn, self.is_live = len(program.torn), True

    def read(
        self, columns: Columns, storage: int, geometry: Geometry, n_torn: int
    ) -> tuple[Tensor, Evaluation] | None:
        """Return a tensor as it is now, and what that took; None if it is not known.

        Where torch does as it is told. Only while :attr:`is_live`.

        Args:
            columns: All that was recorded so far.
            storage: The storage.
            geometry: The tensor's.
            n_torn: Real storages that something wrote which torch does not see.
        """
        forward = self._forward
        n_run, work = forward.n_run, forward.work
        if n_torn != self._n_torn:
            return None
        try:
            is_done = forward.run(columns, is_strict=True)
        except (ReplayError, RuntimeError, LookupError, TypeError, ValueError):
            return None
        content = forward.held.get(storage)
        if not is_done or content is None or content.is_blank:
            return None
        if geometry.is_conj or geometry.is_neg or geometry.stride is None:
            return None
        cost = Evaluation(
            forward.n_calls,
            n_calls=forward.n_run - n_run,
            nbytes=content.nbytes,
            flops=forward.work - work,
        )
        return make_view(content.real, geometry), cost

    def _take(self, recorded: ProgramCalls, n_calls: int) -> None:
        """Take what is kept as it was before a call."""
        kept, find_last = self._kept, recorded.writers.find_last
        known = kept.list_contents(can_assume=False)
        raw = kept.find_raw(known)
        for storage, last in [*known.items()]:
            is_there = storage not in raw and storage not in recorded.dead
            if is_there and find_last(storage, n_calls) == last:
                self._forward.held[storage] = Held(kept.take(storage))

    def give_back(self, recorded: ProgramCalls) -> None:
        """Put all that is held to what is kept."""
        forward = self._forward
        held, streams, end = forward.held, forward.streams, forward.n_calls
        self.is_live = False
        forward.clear()
        if streams is not None:
            for generator, draw, state in streams.ends():
                self._kept.put_state(generator, draw, state)
        for storage, content in held.items():
            constant = recorded.constants.get(storage)
            is_read_anew = constant is not None and constant.tensor is not None
            if content.is_blank or is_read_anew or storage in recorded.dead:
                continue
            last_call = recorded.writers.find_last(storage, end)
            content = Content(content.real, last_call, is_assumed=False)
            self._kept.put(storage, content)


def read_columns(recorded: ProgramCalls) -> Columns:
    """Return what a forward replay reads of a program."""
    program = recorded.program
    return Columns(
        words=memoryview(program.words).cast("I"),
        storage_by_tensor=memoryview(program.storage_by_tensor).cast("I"),
        signatures=program.signatures,
        deaths=memoryview(program.deaths).cast("I"),
        randomness=lambda: program.randomness,
    )
