"""Write the rows of a program: one for each operator call, a few integers each.

A training step has thousands of calls, so no object is made for each. Read
:meth:`RowWriter.append` first.
"""

import threading
from array import array
from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from types import FrameType
from typing import Any, Final, NamedTuple, Self

import torch
from torch.nn.modules.module import register_module_buffer_registration_hook
from torch.optim.optimizer import register_optimizer_step_post_hook

from meta_magic.recording.identities.call_sites import CallSites
from meta_magic.recording.identities.storages import Clock
from meta_magic.recording.identities.tensors import LiveGeometry, TensorRegistry
from meta_magic.recording.rows.draws import Draws
from meta_magic.recording.rows.module_calls import ModuleCallRecorder
from meta_magic.recording.signatures.entries import Entry
from meta_magic.torch_private.distributed import local_of
from meta_magic.torch_private.interrupts import uninterrupted
from meta_magic.torch_private.modes import DisableTorchFunction
from meta_magic.torch_private.tensor_internals import (
    current_autograd_node,
    next_sequence_number,
    sequence_number_of,
    variable_of,
)
from meta_magic.trace.program import HEADER, TIED, Growing
from meta_magic.trace.program_facts import StorageFacts


class StorageRoles:
    """Notes buffers and optimizer steps by torch's hooks; the row writer adds nodes."""

    def __init__(self, registry: TensorRegistry) -> None:
        self._registry = registry
        self._accumulated = array("I")
        self._buffers: set[int] = set()
        self._states: set[int] = set()
        self._optimized: set[int] = set()
        self._assigned: set[int] = set()
        self._handles: list[Any] = []
        self._thread = 0

    def __enter__(self) -> Self:
        self._thread = threading.get_ident()
        self._handles += [
            register_module_buffer_registration_hook(self._on_buffer),
            register_optimizer_step_post_hook(self._after_step),
        ]
        return self

    def __exit__(self, *_: object) -> None:
        while self._handles:
            self._handles.pop().remove()

    def note_node(self, call: int, node: object) -> None:
        """Note a call of autograd that belongs to no forward operator."""
        tensor = variable_of(node)
        find = self._registry.find_storage
        storage = None if tensor is None else find(local_of(tensor))
        if storage is not None:
            self._accumulated.extend((call, storage))

    def _on_buffer(self, _module: object, _name: str, value: object) -> None:
        if threading.get_ident() == self._thread:
            with DisableTorchFunction():
                self._buffers.update(self._registry.find_storages([value]))

    @uninterrupted
    def _after_step(self, optimizer: torch.optim.Optimizer, *_: object) -> None:
        if threading.get_ident() != self._thread:
            return
        find = self._registry.find_storages
        stepped = [p for group in optimizer.param_groups for p in group["params"]]
        with DisableTorchFunction():
            self._optimized.update(find(stepped))
            held: list[object] = []
            for state in optimizer.state.values():
                held += state.values() if isinstance(state, dict) else (state,)
            lists = [value for value in held if value.__class__ is list]
            self._states.update(find([*held, *chain(*lists)]))  # LBFGS keeps lists
        self.note_gradients(stepped)

    def note_gradients(self, parameters: Iterable[object]) -> None:
        """Note the gradients that some parameters have now."""
        with DisableTorchFunction():
            gradients = [getattr(p, "grad", None) for p in parameters]
            self._assigned.update(self._registry.find_storages(gradients))

    def build(self, calls: ModuleCallRecorder, nodes: Iterable[int]) -> StorageFacts:
        """Return all that is known."""
        pairs = iter(self._accumulated)
        parameters = {storage for _, _, storage in calls.registered}
        return StorageFacts(
            sizes=tuple(self._registry.sizes),
            on_meta=tuple(sorted(self._registry.on_meta)),
            parameters=tuple(sorted(parameters)),
            buffers=tuple(sorted(self._buffers)),
            states=tuple(sorted(self._states)),
            optimized=tuple(sorted(self._optimized)),
            accumulated=tuple(zip(pairs, pairs, strict=True)),
            assigned=tuple(sorted(self._assigned)),
            differentiated=array("I", sorted(nodes)).tobytes(),
            repeated=tuple(calls.while_in_backward),
        )


FLUSH_AT: Final = 16384

N_SHARED: Final = 4
"""Words that the headers of a pattern share: call site, owner, last word of the first
row, last word of the others."""


class Pattern(NamedTuple):
    """The rows of a call of a function, which an equal call has, too.

    Attributes:
        n_views: How many views of the first argument they number.
        signatures: The number of the signature of each row.
        arrange: Returns the words of all rows, given those that the headers share, the
            numbers of arguments and new tensors, and ``signatures``.
        made: The geometry of the returned tensor; None if the call makes none.
        is_fresh: Whether that has a storage of its own.
        reads: Whether the call returns the number in its argument.
    """

    n_views: int
    signatures: tuple[int, ...]
    arrange: Callable[[Sequence[int]], tuple[int, ...]]
    made: LiveGeometry | None
    is_fresh: bool
    reads: bool


class RowWriter:
    """Appends the calls of one recording, in the form that ``Program.words`` has.

    Attributes:
        forward_by_sequence: Each call with a node of autograd, and its call site.
        waiting: The words of the latest rows. Extending an array takes five times as
            long, so they wait in a list.
    """

    def __init__(
        self,
        registry: TensorRegistry,
        clock: Clock,
        sites: CallSites,
        calls: ModuleCallRecorder,
        draws: Draws,
    ) -> None:
        self.draws = draws
        self.roles = StorageRoles(registry)
        self.words = Growing()
        self.entries: list[Entry] = []
        self._registry = registry
        self._clock = clock
        self._sites = sites
        self._calls = calls
        self.waiting: list[int] = []
        self._number_by_entry: dict[Entry, int] = {}
        self._last_sequence = -1
        self.forward_by_sequence: dict[int, tuple[int, int]] = {}

    def append(self, entry: Entry, words: list[int]) -> None:
        """Append the row of one call; ``words`` still lacks its header."""
        number = self._number_by_entry.get(entry)
        if number is None:
            number = self._number_by_entry[entry] = len(self.entries)
            self.entries.append(entry)
        words[0] = number
        node, calls = current_autograd_node(), self._calls
        if calls.is_in_backward or node is None:
            site, owner, words[3] = self._sites.locate_operator(calls.entry, calls.site)
            words[2] = calls.word or owner
        else:
            forward = self.forward_by_sequence.get(sequence_number_of(node)())
            if forward is not None:
                site, words[3] = self._sites.backward_of(forward[1]), forward[0] + TIED
            else:
                self.roles.note_node(self._clock.now, node)
                site, words[3] = self._sites.locate_backward(), 0
        words[1] = site
        clock = self._clock
        sequence = next_sequence_number()
        if sequence != self._last_sequence:
            # Autograd made a node for this call: that with the number before.
            self._last_sequence = sequence
            self.forward_by_sequence[sequence - 1] = (clock.now, site)
        clock.now += 1
        self.waiting += words
        if len(self.waiting) > FLUSH_AT:
            self.flush()

    def find_header(self, func: Any, frame: FrameType) -> tuple[int, ...] | None:
        """Return the words that headers share of a call in a frame; None if unknown."""
        calls = self._calls
        known = self._sites.find_known(func, frame, calls.entry, calls.site)
        if known is None:
            return None
        (site, owner, mark), (_, _, others) = known
        return site, calls.word or owner, mark, others

    def append_pattern(
        self, pattern: Pattern, header: Sequence[int], numbers: Sequence[int]
    ) -> None:
        """Append the rows of a call outside of autograd, given its tensors."""
        n_rows = len(pattern.signatures)
        words = pattern.arrange((*header, *numbers, *pattern.signatures))
        # No call stands between these two: an interrupt would lose one of them.
        self._clock.now += n_rows
        self.waiting += words
        if len(self.waiting) > FLUSH_AT:
            self.flush()

    def note_draw(
        self, words: Sequence[int], generator: torch.Generator | None = None
    ) -> None:
        """Record that the call just written would have drawn random numbers."""
        planned = self.entries[words[0]].drawn_on
        named = map(self._registry.is_on_meta, words[HEADER:])
        is_on_meta = self._registry.has_on_meta and any(named)
        self.draws.note(self._clock.now - 1, generator, planned, is_on_meta=is_on_meta)

    def draw_for_real(
        self,
        generator: torch.Generator | None,
        call: Callable[[], Any],
        state_at: Callable[[int], torch.Tensor | None],
    ) -> Any:
        """Run a call that draws real numbers; its row is written next."""
        missing = self.draws.find_missing(generator)
        state = state_at(missing) if missing else None
        return self.draws.run(self._clock.now, generator, call, state)

    @uninterrupted
    def flush(self) -> None:
        """Move the waiting words to the rows."""
        self.words.extend(self.waiting)
        self.waiting.clear()
