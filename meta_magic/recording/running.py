"""Run the operators that are not served, and record what they did."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import Tensor

from meta_magic.recording.attention import AttentionOf
from meta_magic.recording.constants import Constants
from meta_magic.recording.corrections import CORRECTIONS
from meta_magic.recording.drawing import Drawing
from meta_magic.recording.foreign import Foreign, explain_missing_kernel
from meta_magic.recording.higher_order import has_inside, run_inside
from meta_magic.recording.live import Entry, LiveCall, OpTable, sharing, tensors_in
from meta_magic.recording.loading import is_on_meta
from meta_magic.recording.mixed import check_devices, explain_mix
from meta_magic.recording.places import Places
from meta_magic.recording.real_memory import RealMemory
from meta_magic.recording.rows import RowWriter
from meta_magic.recording.signatures import SignatureCache
from meta_magic.recording.tensors import Seen, TensorRegistry
from meta_magic.recording.torch_private import (
    DisableTorchDispatch,
    current_autograd_node,
    pop_dispatch_mode,
    push_dispatch_mode,
)
from meta_magic.recording.values import Values

if TYPE_CHECKING:
    from meta_magic.trace.records import Note

__all__ = ["Runner"]

META: Final = torch.device("meta")
PAST_TORCH: Final = "a real tensor was written unseen by torch, as numpy does it"


class Runner:
    """Runs operators, and records them.

    Attributes:
        notes: What happened otherwise than it would for real, with its line.
        real: The real memory that operators took.
        foreign: What was met besides plain tensors.
        n_foreign: Calls that were not recorded, by the class of tensor they were on.
        failures: Operator and line of the calls that raised.
        doubts: Real tensors that something else than torch wrote, with the line.
        constants: What came into the recording from outside.
        rows: Where the calls are written.
        values: Answers what reads the data of a meta tensor.
        attention: Runs what torch makes of other operators, as a device does.
        answers: By an operator's name, what makes a device's answer of that on meta.
    """

    values: Values
    attention: AttentionOf

    def __init__(
        self,
        registry: TensorRegistry,
        places: Places,
        rows: RowWriter,
        cache: SignatureCache,
    ) -> None:
        super().__init__()
        self.constants = Constants(registry)
        self.notes: dict[Note, None] = {}
        self.real = RealMemory(places, self.notes)
        self.foreign = Foreign(places, self.notes)
        self.n_foreign = self.foreign.n_unseen
        self.failures: dict[tuple[str, int | None], None] = {}
        self.doubts: dict[tuple[str, int | None], None] = {}
        self.answers: Mapping[str, Callable[..., Any]] = {}
        self._registry = registry
        self._places = places
        self.rows = rows
        self._cache = cache
        self._table_by_op = cache.table_by_op
        self._is_opaque = False
        self._opaque_entries: dict[object, Entry] = {}

    @property
    def nbytes_real(self) -> int:
        """Bytes of the storages that operators made on a real device."""
        return self.real.nbytes

    def _run(
        self,
        func: Any,
        key: tuple[object, ...],
        words: list[int],
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
    ) -> Any:
        """Run an operator that is not served, and record it, or what it runs."""
        if self.foreign.is_on_nested(args, kwargs):
            self._is_opaque = False
            return func(*args, **kwargs)
        if has_inside(func, args):
            returned = self._run_inside(func, args, kwargs)
            if returned is not NotImplemented:
                return returned
        table = self._table_by_op.get(func) or self._cache.open(func)
        is_whole = table.is_composite and is_undivided(args)
        if is_whole or is_legacy(func, kwargs, self._places.function):
            return self._replace(table, args, kwargs)
        return self._run_kernel(table, key, words, args, kwargs)

    def _replace(
        self, table: OpTable, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Any:
        """Run what stands for an operator: what torch makes it of, or it on meta."""
        mode: Any = self  # as it is when mixed in
        if not table.is_composite:
            kwargs = {**kwargs, "device": META}
            return mode.__torch_dispatch__(table.func, (), args, kwargs)
        push_dispatch_mode(mode)
        try:
            return self.attention.decompose(table.func, args, kwargs)
        finally:
            pop_dispatch_mode()

    def _run_kernel(
        self,
        table: OpTable,
        key: tuple[object, ...],
        words: list[int],
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
    ) -> Any:
        """Run the kernel, then record the call with what it returned."""
        registry = self._registry
        inputs = [(t, registry.read(t)) for t in tensors_in(args, kwargs)]
        before = registry.n_storages, len(self.values.evaluations)
        entries: dict[Any, Entry] = table.entries
        if self._is_opaque:
            self._is_opaque, entries, key = False, self._opaque_entries, (table, *key)
        draw = Drawing(args, kwargs, inputs) if table.is_random else None
        returned = self._call(table, args, kwargs, inputs, draw)
        registry.note_deaths()
        made = tensors_in(returned)
        if self.foreign.has_unseen(made):
            return returned
        outputs = [(t, self._see_output(t, inputs)) for t in made]
        call = LiveCall(args, kwargs, returned, inputs, outputs)
        self._check(table, call, *before)
        if not table.is_pure:  # what it writes may be what it reads
            key = (*key, *sharing_of(inputs))
        words += [seen[0] for _, seen in outputs]
        with DisableTorchDispatch():  # it makes tensors that no other mode must see
            entry = self._cache.intern(table, entries, key, call)
        self.rows.append(entry, words)
        if draw is not None and not draw.is_real:
            self.rows.draws.note(registry.clock[0] - 1, draw.generator)
        return returned

    def _check(
        self, table: OpTable, call: LiveCall, n_storages: int, n_evaluated: int
    ) -> None:
        """Refuse a result that is garbage; note one that is real, or not as for real.

        Args:
            table: The operator.
            call: Its call.
            n_storages: How many storages were known before it.
            n_evaluated: How many calls were answered with values before it.
        """
        if not all(seen[2].is_meta for _, seen in call.outputs):
            if n_evaluated == len(self.values.evaluations):
                check_devices(table.name, call)
            self.constants.note_made(call.outputs)
            self.real.count(call, n_storages)
        self.foreign.check(table, call)

    def _call(
        self,
        table: OpTable,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        inputs: Sequence[tuple[Tensor, Seen]],
        draw: Drawing | None,
    ) -> Any:
        """Call an operator; one that draws for real from where plain meta would."""
        if self.constants.note_real_inputs(inputs):
            self.doubts[PAST_TORCH, self._places.current_line()] = None
        func = table.func
        try:
            if draw is None or not draw.is_real:
                returned = func(*args, **kwargs)
                answer = self.answers.get(table.name)
                return returned if answer is None else answer(returned, *args, **kwargs)
            call = partial(func, *args, **kwargs)
            return self.rows.draws.run(self._registry.clock[0], draw.generator, call)
        except Exception as error:
            failure = str(func), self._places.current_line()
            is_first = failure not in self.failures
            self.failures[failure] = None
            answer = self._answer(table, args, kwargs, inputs)
            if answer is NotImplemented:
                explain_mix(error, [tensor for tensor, _ in inputs])
                explain_missing_kernel(error, table.name, inputs)
                raise
            if is_first:
                del self.failures[failure]
            return answer

    def _answer(
        self,
        table: OpTable,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        inputs: Sequence[tuple[Tensor, Seen]],
    ) -> Any:
        """Return what an operator returns that failed on meta, or NotImplemented."""
        correction = CORRECTIONS.get(table.name)
        if correction is not None and all(seen[2].is_meta for _, seen in inputs):
            return correction(*args, **kwargs)
        return self.values.answer(table, args, kwargs, inputs)

    def _run_inside(
        self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Any:
        """Record what an operator runs, instead of it; NotImplemented if it cannot."""
        is_opaque, self._is_opaque = self._is_opaque, False
        returned = self.foreign.trace(func, args, kwargs)
        if returned is NotImplemented:
            returned = run_inside(self, func, args, kwargs)
        if returned is NotImplemented:
            self._is_opaque = is_opaque
        return returned

    def _see_output(
        self, tensor: Tensor, inputs: Sequence[tuple[Tensor, Seen]]
    ) -> Seen:
        for argument, seen in inputs:
            if argument is tensor:
                return self._registry.renew(tensor, seen)
        return self._registry.add_output(tensor)


def is_undivided(args: Sequence[Any]) -> bool:
    """Whether torch did not take an operator apart that it makes of others.

    Autograd does so before this mode is asked, but in inference mode it is off. Nested
    tensors have kernels of their own.
    """
    return torch.is_inference_mode_enabled() and not any(
        isinstance(value, Tensor) and value.is_nested for value in args
    )


def is_legacy(func: Any, kwargs: Mapping[str, Any], function: Any) -> bool:
    """Whether ``torch.Tensor(2, 3)`` makes memory, which ignores the default device."""
    device = kwargs.get("device")
    is_real = device is not None and device.type == "cpu"
    is_unasked = is_real and function is None and current_autograd_node() is None
    return is_unasked and func is torch.ops.aten.empty.memory_format and is_on_meta()


def sharing_of(inputs: Sequence[tuple[Tensor, Seen]]) -> tuple[object, ...]:
    """Return which strided arguments are the same or share a storage."""
    return sharing([tensor for tensor, seen in inputs if seen[1] is not None])
