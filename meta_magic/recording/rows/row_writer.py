"""Write the rows of a program: one per operator call, a few integers each."""

from collections.abc import Callable, Sequence
from typing import Any, Final

import torch

from meta_magic.recording.identities.clock import Clock
from meta_magic.recording.identities.places import Places
from meta_magic.recording.identities.tensors import TensorRegistry
from meta_magic.recording.rows.draws import Draws
from meta_magic.recording.rows.module_calls import ModuleCallRecorder
from meta_magic.recording.rows.storage_roles import StorageRoles
from meta_magic.recording.signatures.entries import Entry
from meta_magic.torch_private.autograd import (
    current_autograd_node,
    next_sequence_number,
    sequence_number_of,
)
from meta_magic.torch_private.interrupts import unbroken
from meta_magic.trace.program import HEADER, TIED, Growing

__all__ = ["RowWriter"]

FLUSH_AT: Final = 16384


class RowWriter:
    """Appends the calls of one recording, in the form that ``Program.words`` has.

    Attributes:
        words: All rows, after :meth:`flush`.
        entries: The signatures met, in order of first call.
        draws: Where random operators would have begun to draw.
        roles: Told of what autograd does with gradients.
        forward_by_sequence: Each call with a node of autograd, and its place.
    """

    def __init__(
        self,
        registry: TensorRegistry,
        clock: Clock,
        places: Places,
        calls: ModuleCallRecorder,
        draws: Draws,
    ) -> None:
        self.draws = draws
        self.roles = StorageRoles(registry)
        self.words = Growing()
        self.entries: list[Entry] = []
        self._registry = registry
        self._clock = clock
        self._places = places
        self._calls = calls
        # Words wait in a list: extending an array takes five times as long.
        self._buffer: list[int] = []
        self._number_by_entry: dict[Entry, int] = {}
        self._last_sequence = -1
        self.forward_by_sequence: dict[int, tuple[int, int]] = {}

    def append(self, entry: Entry, words: list[int]) -> None:
        """Append the row of one call.

        Args:
            entry: Its signature.
            words: Its words, those of the header still to be filled in.
        """
        number = self._number_by_entry.get(entry)
        words[0] = self._add_entry(entry) if number is None else number
        node = current_autograd_node()
        if self._calls.is_in_backward or node is None:
            place, words[2], words[3] = self._locate()
        else:
            place, words[3] = self._tie(node)
        words[1] = place
        clock = self._clock
        sequence = next_sequence_number()
        if sequence != self._last_sequence:
            # Autograd made a node for this call: that with the number before.
            self._last_sequence = sequence
            self.forward_by_sequence[sequence - 1] = (clock.now, place)
        clock.now += 1
        self._buffer += words
        if len(self._buffer) > FLUSH_AT:
            self.flush()

    def note_draw(
        self, words: Sequence[int], generator: torch.Generator | None = None
    ) -> None:
        """Record that the call just written would have drawn random numbers.

        Args:
            words: Its row.
            generator: What it was told to draw from.
        """
        planned = self.entries[words[0]].drawn_on
        is_aside = self._is_aside(words[HEADER:])
        self.draws.note(self._clock.now - 1, generator, planned, is_aside=is_aside)

    def _is_aside(self, numbers: Sequence[int]) -> bool:
        """Whether the cell put one of some tensors on meta by name."""
        registry = self._registry
        return registry.has_aside and any(map(registry.is_aside, numbers))

    def draw_for_real(
        self,
        generator: torch.Generator | None,
        call: Callable[[], Any],
        state_at: Callable[[int], torch.Tensor | None],
    ) -> Any:
        """Run a call that draws real numbers, the next to be written.

        Args:
            generator: What it was told to draw from.
            call: Runs it.
            state_at: Returns where a generator would stand, had all draws been made.
        """
        missing = self.draws.find_missing(generator)
        state = state_at(missing) if missing else None
        return self.draws.run(self._clock.now, generator, call, state)

    @unbroken
    def flush(self) -> None:
        """Move the words out of the buffer."""
        self.words.extend(self._buffer)
        self._buffer.clear()

    def _add_entry(self, entry: Entry) -> int:
        number = self._number_by_entry[entry] = len(self.entries)
        self.entries.append(entry)
        return number

    def _locate(self) -> tuple[int, int, int]:
        """Return the words of the header that tell where a call is made now."""
        calls = self._calls
        place, owner, last = self._places.locate_operator(calls.entry, calls.site)
        return place, calls.word or owner, last

    def _tie(self, node: Any) -> tuple[int, int]:
        """Return place and last word of the header of what ``node`` calls."""
        places = self._places
        forward = self.forward_by_sequence.get(sequence_number_of(node)())
        if forward is not None:
            return places.backward_of(forward[1]), forward[0] + TIED
        self.roles.note_node(self._clock.now, node)
        return places.locate_backward(), 0
