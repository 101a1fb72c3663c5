"""Call the kernel of an operator, see to it that its result is right, and record it."""

from collections.abc import Sequence
from functools import partial
from typing import Any, Final

import torch
from torch import Tensor

from meta_magic.recording.as_device.operand_placements import join_places
from meta_magic.recording.as_device.oracle.cpu_refusals import Refusals
from meta_magic.recording.identities.device_plan import DevicePlan
from meta_magic.recording.identities.generator_carryover import check_generator
from meta_magic.recording.identities.nested_tensors import tensors_in
from meta_magic.recording.identities.storages import NamedPlaces
from meta_magic.recording.identities.tensors import Seen, TensorRegistry
from meta_magic.recording.intercept.kernel_runs import KernelRuns
from meta_magic.recording.intercept.mixed_devices import check_devices
from meta_magic.recording.intercept.real_tensors.captured_constants import Lifting
from meta_magic.recording.intercept.sparse_calls import SparseCalls
from meta_magic.recording.intercept.special_tensors import SpecialTensors
from meta_magic.recording.intercept.value_checks import ValueChecks, ValueSource
from meta_magic.recording.rows.constants import Constants
from meta_magic.recording.rows.diagnostics import Diagnostics, RealMemory
from meta_magic.recording.rows.draws import Drawing
from meta_magic.recording.rows.row_writer import RowWriter
from meta_magic.recording.signatures.cache import SignatureCache
from meta_magic.recording.signatures.entries import (
    Args,
    Entry,
    Given,
    Inputs,
    Kwargs,
    LiveCall,
    OpTable,
    sharing_of,
)
from meta_magic.recording.signatures.operator_keys import Key, has_opaque
from meta_magic.torch_private.dispatcher import read_scalar
from meta_magic.torch_private.modes import DisableTorchDispatch

__all__ = ["KernelCalls"]

PAST_TORCH: Final = "a real tensor was written unseen by torch, as numpy does it"


class KernelCalls:
    """Calls kernels, and records the calls with what they returned.

    Args:
        registry: Numbers of tensors.
        rows: Where calls are written.
        cache: Interns their signatures.
        constants: Keeps the content of real tensors that are read.
        real_memory: Counts what operators make on a real device.
        special: Knows what is no plain tensor.
        diagnostics: Takes what failed or may differ.
        values: Computes values of meta tensors.
        plan: Knows where the code wants what, and whose kernels run there.
        refusals: Refuses what the CPU refuses.
        checks: Does so for what operands hold.

    Attributes:
        plan: Knows where the code wants what.
        lifting: Makes constants of real tensors.
        checks: Refuses calls for what operands hold.
    """

    def __init__(  # noqa: PLR0913  all that a call may concern
        self,
        *,
        registry: TensorRegistry,
        rows: RowWriter,
        cache: SignatureCache,
        constants: Constants,
        real_memory: RealMemory,
        special: SpecialTensors,
        diagnostics: Diagnostics,
        values: ValueSource,
        plan: DevicePlan,
        lifting: Lifting,
        refusals: Refusals,
        checks: ValueChecks,
    ) -> None:
        self._registry = registry
        self._rows = rows
        self._cache = cache
        self._constants = constants
        self._real_memory = real_memory
        self._special = special
        self._diagnostics = diagnostics
        self.plan = plan
        self.lifting = lifting
        self._refusals = refusals
        self._runs = KernelRuns(rows, diagnostics, values, refusals)
        self._sparse = SparseCalls(registry, values)
        self.checks = checks
        self._values = values
        self._opaque_entries: dict[object, Entry] = {}

    def call(
        self,
        table: OpTable,
        key: Key,
        words: list[int],
        args: Args,
        kwargs: Kwargs,
    ) -> Any:
        """Call a kernel, or answer without; record the call with what it returned.

        Returns:
            That; ``NotImplemented`` if real tensors are to be lifted before.
        """
        if table.func is read_scalar:
            number = self._find_number(table.entries.get(key), words, args[0])
            if number is not None:
                return number
        return self._call(table, key, words, args, kwargs)

    def _call(
        self, table: OpTable, key: Key, words: list[int], args: Args, kwargs: Kwargs
    ) -> Any:
        """Call a kernel, then record the call with what it returned.

        Returns:
            That; ``NotImplemented`` if real tensors are to be lifted before.
        """
        registry, diagnostics = self._registry, self._diagnostics
        inputs = [(t, registry.read(t)) for t in tensors_in(args, kwargs)]
        given = Given(args, kwargs, inputs)
        reals = [pair for pair in inputs if not pair[1][2].is_meta]
        if reals and self._is_to_lift(table, given, reals):
            return NotImplemented
        n_storages, n_answered = registry.n_storages, diagnostics.n_answered
        place = self._find_place(table, given) if NamedPlaces.are_there else None
        draw = Drawing(given) if table.draws(args, kwargs) else None
        if draw is not None and draw.generator is not None:
            check_generator(draw.generator, place)
        run = partial(self._runs.run, table, key, given, draw)
        returned = self._sparse.run(table, given, run, self.plan.kernels_at(place))
        if registry.freed:
            registry.note_deaths()
        made = tensors_in(returned)
        if self._special.has_unseen(made):
            return returned
        outputs = [(t, self._see_output(t, inputs, place)) for t in made]
        call = LiveCall(args, kwargs, returned, inputs, outputs)
        is_answered = n_answered < diagnostics.n_answered
        self._check(table, call, n_storages, is_answered=is_answered)
        words += [seen[0] for _, seen in outputs]
        self._rows.append(self._intern(table, key, call, words), words)
        if draw is not None and not draw.is_real:
            self._rows.note_draw(words, draw.generator)
        return returned

    def _find_number(self, entry: Entry | None, words: list[int], tensor: Any) -> Any:
        """Return the number that a tensor is, if it is there already, and record that.

        Args:
            entry: The signature of what reads it; None of the first such call.
            words: The row of the call.
            tensor: The tensor.
        """
        if entry is None or entry.is_on_real:
            return None
        number = self._values.find_number(tensor, self._registry.read_again(tensor))
        if number is not None:
            self._rows.append(entry, words)
        return number

    def call_on_real(
        self, entry: Entry, table: OpTable, words: list[int], args: Args, kwargs: Kwargs
    ) -> Any:
        """Call a kernel on one real tensor, which makes nothing new, and record that.

        Args:
            entry: Its signature, one with ``is_on_real``.
            table: The operator.
            words: The row of the call.
            args: Its positional arguments.
            kwargs: Its others.
        """
        real = tensors_in(args, kwargs)[0]
        seen = self._registry.read_again(real)
        given = Given(args, kwargs, [(real, seen)])
        if self.lifting.has_any and self.lifting.is_due(table, given, given.inputs):
            return NotImplemented
        if self._constants.note_real_inputs(given.inputs):
            self._diagnostics.doubt(PAST_TORCH)
        kernels = self.plan.kernels_at(seen[2].place)
        returned = self._runs.run_or_rescue(table, given, None, kernels)
        if table.written:
            self._constants.note_made(given.inputs)
            words.append(seen[0])
        self._rows.append(entry, words)
        return returned

    def _is_to_lift(self, table: OpTable, given: Given, reals: Inputs) -> bool:
        """Whether real arguments are to be on meta; else note what they hold."""
        if self.lifting.is_due(table, given, reals):
            return True
        if self._constants.note_real_inputs(reals):
            self._diagnostics.doubt(PAST_TORCH)
        return False

    def _intern(
        self, table: OpTable, key: Key, call: LiveCall, words: Sequence[int]
    ) -> Entry:
        """Return the entry of a call; what only this recording knows stays in it.

        Refuse the call if what it reads is out of range.
        """
        entries: dict[Any, Entry] = table.entries
        if has_opaque(key):
            entries, key = self._opaque_entries, (table, *key)
        if not table.is_pure:  # what it writes may be what it reads
            key = (*key, *sharing_of(call.inputs))
        with DisableTorchDispatch():  # it makes tensors that no other mode must see
            entry = self._cache.intern(table, entries, key, call)
        if self._refusals.is_left:
            entry.is_unasked, self._refusals.is_left = True, False
        if entry.allowed:
            self.checks.check(entry, table.func, words, call.args, call.kwargs)
        return entry

    def _check(
        self, table: OpTable, call: LiveCall, n_storages: int, *, is_answered: bool
    ) -> None:
        """Refuse a result that is garbage; note one that is real, or not as for real.

        Args:
            table: The operator.
            call: Its call.
            n_storages: How many storages were known before it.
            is_answered: Whether it was answered with values, or those assumed.
        """
        is_on_meta = all(seen[2].is_meta for _, seen in call.outputs)
        if is_answered and is_on_meta:  # of some operators no tag says that they read
            table.is_served = False
        if not is_on_meta:
            if not is_answered:
                check_devices(table.name, call)
            self._constants.note_made(call.outputs)
            self._real_memory.count(call, n_storages)
        elif table.written and not call.outputs:  # as lists of tensors are written
            self._constants.note_made(call.inputs)
        self._special.check(table, call)

    def _find_place(self, table: OpTable, given: Given) -> torch.device | None:
        """Return where an operator puts what it makes; refuse where it cannot be."""
        if "device" in given.kwargs:
            return self.plan.place_of_made()
        return join_places(table, [seen[2] for _, seen in given.inputs])

    def _see_output(
        self, tensor: Tensor, inputs: Inputs, place: torch.device | None
    ) -> Seen:
        for argument, seen in inputs:
            if argument is tensor:
                return self._registry.renew(tensor, seen)
        return self._registry.add_output(tensor, place)
