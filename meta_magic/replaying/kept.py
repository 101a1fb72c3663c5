"""What replays of a program left of it, for the next one to go on from."""

from collections.abc import Collection, Iterable, Mapping
from typing import Final, NamedTuple

from torch import Tensor, UntypedStorage

from meta_magic.replaying.raw_memory import RawMemory
from meta_magic.torch_private.interrupts import unbroken

__all__ = ["Content", "Kept"]

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
