"""Write the rows of a program: one per operator call, a few integers each."""

from collections.abc import Callable, Sequence
from typing import Any, Final

import torch
from torch import Tensor
from torch.autograd.graph import increment_version

from meta_magic.recording.identities.clock import Clock
from meta_magic.recording.identities.places import Places
from meta_magic.recording.identities.tensors import TensorRegistry
from meta_magic.recording.rows.draws import Draws
from meta_magic.recording.rows.made_numbers import MadeNumbers
from meta_magic.recording.rows.module_calls import ModuleCallRecorder
from meta_magic.recording.rows.storage_roles import StorageRoles
from meta_magic.recording.signatures.entries import Entry
from meta_magic.recording.signatures.learning import Captured
from meta_magic.recording.signatures.templates import Operands, Template
from meta_magic.torch_private.autograd import (
    current_autograd_node,
    next_sequence_number,
    sequence_number_of,
)
from meta_magic.torch_private.interrupts import unbroken
from meta_magic.torch_private.modes import DisableTorchDispatch
from meta_magic.trace.program import GOES_ON, HEADER, TIED, Growing

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
        self._made = MadeNumbers(registry)
        self._clock = clock
        self._places = places
        self._calls = calls
        # Words wait in a list: extending an array takes five times as long.
        self._buffer: list[int] = []
        self._captured: list[tuple[Entry, Sequence[int]]] | None = None
        self._number_by_entry: dict[Entry, int] = {}
        self._numbers_by_template: dict[Template, list[int]] = {}
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
        if self._captured is not None:
            self._captured.append((entry, words))
        if len(self._buffer) > FLUSH_AT:
            self.flush()

    @unbroken
    def append_alone(self, entry: Entry, numbers: tuple[int, ...]) -> None:
        """Append the row of a function's only call, and that it would have drawn.

        In no backward pass.

        Args:
            entry: Its signature.
            numbers: Those of its tensors.
        """
        calls, clock, places = self._calls, self._clock, self._places
        if calls.entry is None:
            place, owner = places.locate_alone()
        else:
            place, owner, _ = places.locate_operator(calls.entry, calls.site)
        sequence = next_sequence_number()
        if sequence != self._last_sequence:  # a function of the user's own began
            self._last_sequence = sequence
            self.forward_by_sequence[sequence - 1] = (clock.now, place)
        number = self._number_by_entry.get(entry)
        if number is None:
            number = self._add_entry(entry)
        self._buffer += (number, place, calls.word or owner, 0, *numbers)
        if len(self._buffer) > FLUSH_AT:
            self.flush()
        now = clock.now
        clock.now = now + 1
        if entry.is_random:
            if entry.drawn_on is None and not self._registry.has_aside:
                self.draws.note_next(now)
            else:
                is_aside = self._is_aside(numbers)
                self.draws.note(now, None, entry.drawn_on, is_aside=is_aside)

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

    def watch(self, tensors: Sequence[Tensor], call: Callable[[], Any]) -> Captured:
        """Run the call of a torch function, and return what it did."""
        if self._registry.freed:
            self._registry.note_deaths()
        now, n_deaths = self._clock.now, len(self._registry.deaths)
        rows: list[tuple[Entry, Sequence[int]]] = []
        self._captured = rows
        try:
            returned = call()
        finally:
            self._captured = None
        if self._registry.freed:
            self._registry.note_deaths()
        deaths = self._registry.deaths[n_deaths:]
        return Captured(tensors, returned, rows, now, deaths)

    def append_function(self, template: Template, operands: Operands) -> Any:
        """Append the rows of a function's call, and return what it returns."""
        made, storages = self._append_template(template, operands)
        add_served = self._registry.add_served
        below = DisableTorchDispatch()  # in force already; ``with`` takes as long again
        try:
            returned = []
            for index, storage, geometry, viewed in template.outputs:
                if viewed is None:
                    tensor = geometry.make()
                    add_served(tensor, made[index], storages[storage], geometry)
                else:
                    number, of = viewed
                    base = of.make()
                    add_served(base, made[number], storages[storage], of)
                    tensor = base.view(geometry.shape)
                    self._registry.add_known(tensor, made[index], None, geometry)
                if template.container is None:
                    return tensor
                returned.append(tensor)
            return template.container(returned)  # type: ignore[misc]  # it is one
        finally:
            del below

    def append_views(self, template: Template, operands: Operands, views: Any) -> None:
        """Append the rows of a function that made views, and number those."""
        made, _ = self._append_template(template, operands)
        tensors = (views,) if template.container is None else views
        for position, (index, storage, geometry, _) in enumerate(template.outputs):
            base = operands.seens[~storage][1]
            add_known = self._registry.add_known
            add_known(tensors[position], made[index], base, geometry)

    @unbroken
    def append_write(self, template: Template, operands: Operands) -> None:
        """Append the rows of a function that writes its first tensor; count that."""
        self._append_template(template, operands)
        written = operands.tensors[0]
        if not written.is_inference():
            increment_version(written)

    @unbroken
    def _append_template(
        self, template: Template, operands: Operands
    ) -> tuple[Sequence[int], Sequence[int]]:
        """Append the rows of a function's call; return the numbers of what it makes."""
        calls, clock = self._calls, self._clock
        place, owner, last = self._places.locate_operator(calls.entry, calls.site)
        sequence = next_sequence_number()
        if sequence != self._last_sequence:  # a function of the user's own began
            self._last_sequence = sequence
            self.forward_by_sequence[sequence - 1] = (clock.now, place)
        made, storages = self._made.number(template, operands)
        arguments = operands.numbers
        numbers = self._numbers_by_template.get(template)
        if numbers is None:
            numbers = self._numbers_by_template[template] = self._add_entries(template)
        module = calls.word or owner
        self._buffer += template.pick(
            [*numbers, place, module, last, GOES_ON, *arguments, *made]
        )
        if len(self._buffer) > FLUSH_AT:
            self.flush()
        now = clock.now
        clock.now = now + template.n_rows
        for after, storage in template.deaths:
            self._registry.deaths.extend((now + after, storages[storage]))
        for row, drawn_on, read in template.random_rows:
            numbers = [arguments[i] if i >= 0 else made[~i] for i in read]
            is_aside = self._is_aside(numbers)
            self.draws.note(now + row, None, drawn_on, is_aside=is_aside)
        return made, storages

    def _add_entry(self, entry: Entry) -> int:
        number = self._number_by_entry[entry] = len(self.entries)
        self.entries.append(entry)
        return number

    def _add_entries(self, template: Template) -> list[int]:
        known = self._number_by_entry
        return [
            known[entry] if entry in known else self._add_entry(entry)
            for entry in template.entries
        ]

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
