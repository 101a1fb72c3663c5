"""Run the kernel of an operator as the device would, and record the call.

Most operators run on meta. Some fail there, or return another result than the device:
``torch.histogram`` has no meta kernel, and a convolution has other strides. Others are
refused by the CPU and not by meta. :class:`KernelCalls` decides for each operator that
is no cache hit whether it runs whole, decomposed, or replaced. Read ``run`` first.
"""

from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor
from torch.autograd.graph import increment_version

from meta_magic.errors import MissingValueError
from meta_magic.recording.as_device.adjustments import (
    ADJUSTMENTS,
    CORRECTIONS,
    SHORT_KERNELS,
)
from meta_magic.recording.as_device.attention import DeviceAttention
from meta_magic.recording.as_device.cpu_kernels import (
    copy_with_strides,
    lay_out_written,
    match_cpu_if_needed,
)
from meta_magic.recording.as_device.oracle.cpu_refusals import Refusals
from meta_magic.recording.identities.generator_carryover import check_generator
from meta_magic.recording.identities.storages import NamedDevices
from meta_magic.recording.identities.tensors import Seen, tensors_in
from meta_magic.recording.intercept.factories import LEGACY, run_legacy
from meta_magic.recording.intercept.higher_order import has_inside, run_inside
from meta_magic.recording.intercept.moves import (
    check_devices,
    explain_mix,
    join_placements,
)
from meta_magic.recording.intercept.real_tensors.captured_constants import (
    ConstantCapture,
)
from meta_magic.recording.intercept.special_tensors import (
    SparseCalls,
    SpecialTensors,
    check_quantized,
    explain_missing_kernel,
)
from meta_magic.recording.intercept.value_checks import ValueChecks, ValueSource
from meta_magic.recording.rows.draws import RunningDraw
from meta_magic.recording.rows.writers import Writers
from meta_magic.recording.signatures.cache import (
    Key,
    SignatureCache,
    generalize,
    has_opaque,
)
from meta_magic.recording.signatures.entries import (
    Args,
    Entry,
    Given,
    Inputs,
    Kwargs,
    LiveCall,
    OpTable,
    sharing_of_inputs,
)
from meta_magic.torch_private.dispatcher import DispatchKey, has_kernel
from meta_magic.torch_private.modes import (
    DisableTorchDispatch,
    DisableTorchFunction,
    ExcludeKey,
    fake_tensor_mode,
    n_dispatch_modes,
    pop_dispatch_mode,
    push_dispatch_mode,
)
from meta_magic.trace.options import DeviceName

PAST_TORCH: Final = "a real tensor was written without torch, as by numpy"


UNMADE: Final = (
    "real numbers were drawn too early: to make the draws before them takes too much "
    "(see torch.manual_seed, --value-seconds)"
)


MOVE: Final = "aten.to."  # prefix of composite operators that move or cast a tensor


class OperatorCall(NamedTuple):
    """An operator call that is no cache hit; ``words`` is its row."""

    table: OpTable
    key: Key
    words: list[int]
    args: Args
    kwargs: Kwargs


class KernelCalls:
    """Runs operators that are no cache hits, and records them with their results."""

    def __init__(
        self,
        write: Writers,
        cache: SignatureCache,
        attention: DeviceAttention,
        values: ValueSource,
        capture: ConstantCapture,
        refusals: Refusals,
        checks: ValueChecks,
    ) -> None:
        self._registry, self._rows = write.registry, write.rows
        self._sites = write.sites
        self._constants, self._diagnostics = write.constants, write.diagnostics
        self._cache = cache
        self._attention = attention
        self.special = SpecialTensors(write)
        self.plan, self.checks = write.plan, checks
        self._capture = capture
        self._refusals = refusals
        self._sparse = SparseCalls(write.registry, values)
        self._values, self.find_number = values, values.find_number
        self._opaque_entries: dict[object, Entry] = {}
        self._is_taking_apart = False

    def run(self, mode: Any, call: OperatorCall) -> Any:
        """Run an operator, and record it or the operators that it runs."""
        table, key, _, args, kwargs = call
        func = table.func
        entry = table.entries.get(key)
        if (
            entry is not None
            and entry.is_on_real
            and not n_dispatch_modes()  # no other mode must see it
            and fake_tensor_mode() is None
        ):
            return self.call_on_real(entry, call)
        if self.special.is_unrecorded(args, kwargs):
            return func(*args, **kwargs)
        returned: Any = NotImplemented
        if has_inside(func, args):
            returned = self.special.trace(func, args, kwargs)
            if returned is NotImplemented:
                returned = run_inside(mode, func, args, kwargs)
        is_legacy = func in LEGACY and self._sites.function is None
        if returned is NotImplemented and is_legacy:
            returned = run_legacy(mode, func, args, kwargs)
        if returned is NotImplemented:
            returned = self.call(call)
        if returned is NotImplemented:  # real tensors go to meta first
            capture = self._capture.capture_arguments
            captured = capture(args, table), capture(kwargs, table)
            returned = mode.__torch_dispatch__(func, (), *captured)
        return returned

    def is_undivided(self, table: OpTable, args: Args) -> bool:
        """Whether a composite operator reached this mode undivided.

        Autograd usually divides it before this mode is called. It does not in inference
        mode, for tensors made there, for parts of such an operator, or below the code
        of a tensor subclass. In such code only ``.tolist()`` matters, because it moves
        meta tensors to the CPU. Nested tensors have kernels of their own.
        """
        tensors = tensors_in(args)
        with DisableTorchFunction():
            if any(tensor.is_nested for tensor in tensors):
                return False
            is_off = self._is_taking_apart or torch.is_inference_mode_enabled()
            if is_off or table.name.startswith(MOVE):
                return True
            return any(tensor.is_inference() for tensor in tensors)

    def take_apart(self, mode: Any, table: OpTable, args: Args, kwargs: Kwargs) -> Any:
        """Run the operators that make up an operator, so that the mode sees them.

        torch counts views and writes either in the parts, or around the whole operator,
        as for ``chunk`` and ``narrow``, but never in both.
        """
        is_noted = has_kernel(table.func.name(), DispatchKey.ADInplaceOrView.name)
        before, self._is_taking_apart = self._is_taking_apart, True
        push_dispatch_mode(mode)
        try:
            with ExcludeKey(DispatchKey.ADInplaceOrView, is_noted):
                return self._attention.decompose(table.func, args, kwargs)
        finally:
            pop_dispatch_mode()
            self._is_taking_apart = before

    def call(self, call: OperatorCall) -> Any:
        """Run a kernel, or answer without it, and record the call."""
        table, key, words, args, kwargs = call
        registry, diagnostics = self._registry, self._diagnostics
        inputs = [(t, registry.read(t)) for t in tensors_in(args, kwargs)]
        given = Given(args, kwargs, inputs)
        reals = [pair for pair in inputs if not pair[1][2].is_meta]
        if reals:
            if self._capture.is_due(table, given, reals):
                return NotImplemented
            self._note_reals(reals)
        n_storages, n_answered = registry.n_storages, diagnostics.n_answered
        placement = None
        if NamedDevices.exist and "device" in kwargs:
            placement = self.plan.placement_of_made()
        elif NamedDevices.exist:
            placement = join_placements(table, [seen[2] for _, seen in inputs])
        draw = RunningDraw(given) if table.draws(args, kwargs) else None
        if draw is not None and draw.generator is not None:
            check_generator(draw.generator, placement)
        run = partial(self._run, table, key, given, draw)
        returned = self._sparse.run(table, given, run, self.plan.kernels_at(placement))
        if registry.freed:
            registry.note_deaths()
        made = tensors_in(returned)
        if self.special.has_unseen(made):
            return returned
        outputs = [(t, self._see_output(t, inputs, placement)) for t in made]
        ran = LiveCall(args, kwargs, returned, inputs, outputs)
        is_answered = n_answered < diagnostics.n_answered
        self._check(table, ran, n_storages, is_answered=is_answered)
        words += [seen[0] for _, seen in outputs]
        self._rows.append(self._intern(table, key, ran, words), words)
        if draw is not None and not draw.is_real:
            self._rows.note_draw(words, draw.generator)
        return returned

    def call_on_real(self, entry: Entry, call: OperatorCall) -> Any:
        """Run a kernel on one real tensor, with no new results; record the call."""
        table, _, words, args, kwargs = call
        real = tensors_in(args, kwargs)[0]
        seen = self._registry.read_again(real)
        given = Given(args, kwargs, [(real, seen)])
        if self._capture.has_any:
            self._capture.is_due(table, given, given.inputs)  # refuses some writes
        self._note_reals(given.inputs)
        kernels = self.plan.kernels_at(seen[2].placement)
        returned = self._run_or_rescue(table, given, None, kernels)
        if table.written:
            self._constants.note_made(given.inputs)
            words.append(seen[0])
        self._rows.append(entry, words)
        return returned

    def _note_reals(self, reals: Inputs) -> None:
        """Note the content of real arguments; a caveat if torch did not see a write."""
        if self._constants.note_real_inputs(reals):
            self._diagnostics.note_caveat(PAST_TORCH)

    def _intern(
        self, table: OpTable, key: Key, call: LiveCall, words: Sequence[int]
    ) -> Entry:
        """Return the entry of a call; check the values that the call reads."""
        entries: dict[Any, Entry] = table.entries
        if has_opaque(key):
            entries, key = self._opaque_entries, (table, *key)
        if not table.is_pure:  # it may read the tensor that it writes
            key = (*key, *sharing_of_inputs(call.inputs))
        with DisableTorchDispatch():  # no other mode must see its tensors
            entry = self._cache.intern(table, entries, key, call)
        if self._refusals.is_unasked:
            self._refusals.is_unasked = False
            self._diagnostics.unasked.add((table, key))
            table.alike.pop(generalize(key), None)  # no call is answered by this one
        if entry.allowed:
            self.checks.check(entry, table.func, words, call.args, call.kwargs)
        return entry

    def _check(
        self, table: OpTable, call: LiveCall, n_storages: int, *, is_answered: bool
    ) -> None:
        """Refuse garbage; note real memory, and possible differences."""
        is_on_meta = all(seen[2].is_meta for _, seen in call.outputs)
        if is_answered and is_on_meta:  # it reads data, although no tag says so
            table.allows_fast_path = False
        if not is_on_meta:
            if not is_answered:
                check_devices(table.name, call)
            self._constants.note_made(call.outputs)
            self._diagnostics.count_real(call, n_storages)
        elif table.written and not call.outputs:  # as operators on lists of tensors
            self._constants.note_made(call.inputs)
        if "quantize" in table.name:
            check_quantized(table.name, call)

    def _see_output(
        self, tensor: Tensor, inputs: Inputs, placement: torch.device | None
    ) -> Seen:
        for argument, seen in inputs:
            if argument is tensor:
                return self._registry.renew(tensor, seen)
        return self._registry.add_output(tensor, placement)

    def _run(
        self,
        table: OpTable,
        key: Key,
        given: Given,
        draw: RunningDraw | None,
        kernels: DeviceName,
    ) -> Any:
        """Call an operator, or refuse it as the device does."""
        if not self._refusals.is_due(table, key, given, kernels):
            return self._run_or_rescue(table, given, draw, kernels)
        if table.written or table.reads_data:  # meta would resize it, or read values
            self._refusals.check(table, given, kernels)
            return self._run_or_rescue(table, given, draw, kernels)
        returned = self._run_or_rescue(table, given, draw, kernels)
        return self._refusals.check(table, given, kernels, returned)

    def _run_or_rescue(
        self,
        table: OpTable,
        given: Given,
        draw: RunningDraw | None,
        kernels: DeviceName,
    ) -> Any:
        """Call an operator; if it fails on meta, get its result another way."""
        args, kwargs, inputs = given
        try:
            if draw is None or not draw.is_real:
                return self._run_on_meta(table, given, kernels)
            call = partial(table.func, *args, **kwargs)
            return self._rows.draw_for_real(draw.generator, call, self._find_state)
        except Exception as error:
            failures = self._diagnostics.failures
            failure = self._diagnostics.locate(str(table.func))
            is_first = failure not in failures
            failures[failure] = None
            returned = self._rescue(table, given)
            if returned is NotImplemented:
                returned = self._refusals.rescue(table, given, kernels, error)
            if returned is NotImplemented:
                explain_mix(error, [tensor for tensor, _ in inputs])
                explain_missing_kernel(error, table.name, inputs)
                raise
            if is_first:
                del failures[failure]
            return returned

    def _find_state(self, source: int) -> Tensor | None:
        """Return the state of a generator as if all draws had been made."""
        state = self._values.state_at(source)
        if state is None:
            self._diagnostics.note("draw", UNMADE)
            self._diagnostics.note_caveat(UNMADE)
        return state

    def _run_on_meta(self, table: OpTable, given: Given, kernels: DeviceName) -> Any:
        """Call an operator, with the result as it would be on the device."""
        args, kwargs, _ = given
        short = None if kernels == "meta" else SHORT_KERNELS.get(table.name)
        with DisableTorchFunction():  # a kernel's own calls are no code of the cell
            returned = (short or table.func)(*args, **kwargs)
        if table.counts_writes:
            increment_version(args[0])
        if table.has_out and kernels == "cpu":
            lay_out_written(table.func, given)
        adjust = ADJUSTMENTS[kernels].get(table.name)
        if adjust is not None:
            returned = adjust(returned, *args, **kwargs)
        if kernels == "cpu" and table.makes_new:
            returned = match_cpu_if_needed(table.func, given, returned)
        return returned

    def _rescue(self, table: OpTable, given: Given) -> Any:
        """Return the result of an operator that failed on meta, or NotImplemented."""
        correct = CORRECTIONS.get(table.name)
        if correct is not None and all(seen[2].is_meta for _, seen in given.inputs):
            with suppress(Exception):  # wrong arguments: the CPU says which
                returned = correct(*given.args, **given.kwargs)
                if returned is not NotImplemented:
                    return returned
        try:
            returned = self._values.evaluate(table, given)
        except MissingValueError:
            if not table.is_foreign:  # else it only has no kernel for meta
                raise
            return NotImplemented
        if isinstance(returned, Tensor) and not returned.is_meta:
            return copy_with_strides(returned, given.args[0])
        return returned
