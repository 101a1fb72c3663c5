"""The dispatch mode: meets every operator, and serves those whose answer is known."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final

import torch
from torch import Tensor
from torch.nn import Parameter

from meta_magic.recording.constants import Constants
from meta_magic.recording.corrections import CORRECTIONS
from meta_magic.recording.live import (
    PLAIN,
    Entry,
    Kind,
    LiveCall,
    OpTable,
    plain_float,
    sharing,
    tensors_in,
)
from meta_magic.recording.mixed import check_devices, explain_mix
from meta_magic.recording.places import Places, describe_function
from meta_magic.recording.rows import RowWriter, make_tensor
from meta_magic.recording.signatures import SignatureCache
from meta_magic.recording.tensors import Seen, TensorRegistry
from meta_magic.recording.torch_private import (
    TorchDispatchMode,
    device_constructors,
    is_deterministic,
)
from meta_magic.recording.values import Values
from meta_magic.trace.program import HEADER
from meta_magic.trace.records import Note

__all__ = ["DispatchRecorder"]

PAST_TORCH: Final = "a real tensor was written unseen by torch, as numpy does it"
PLAIN_TENSORS: Final = frozenset({Tensor, Parameter})
TRACED: Final = ("FakeTensor", "FunctionalTensor")

# Plain integers: the attribute of an enum costs more than the comparison.
RUN, PURE, VIEW, IN_PLACE = map(int, (Kind.RUN, Kind.PURE, Kind.VIEW, Kind.IN_PLACE))

as_strided = torch.as_strided
default_dtype = torch.get_default_dtype


class Recorder:
    """What the dispatch mode does.

    A plain class, mixed in below: torch wraps ``__torch_dispatch__`` of a direct
    subclass of ``TorchDispatchMode`` so that the first operator imports dynamo.

    Attributes:
        notes: Factories that made real tensors without being told to, with their line.
        nbytes_real: Bytes of the storages that operators made on a real device.
        n_foreign: Calls that were not recorded, by the class of tensor they were on.
        failures: Operator and line of the calls that raised.
        doubts: Real tensors that something else than torch wrote, with the line.
        constants: What came into the recording from outside.
        rows: Where the calls are written.
        values: Answers what reads the data of a meta tensor.
        answers: By an operator's name, what makes a device's answer of that on meta.
    """

    values: Values

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
        self.nbytes_real = 0
        self.n_foreign: dict[str, int] = {}
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

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Record one operator call and return what it returns."""
        if types and not PLAIN_TENSORS.issuperset(types):
            foreign = self._pass_foreign(func, types, args, kwargs)
            if foreign is not None:
                return foreign[0]
        self._registry.note_deaths()
        words = [0] * HEADER
        key = self._build_key(args, kwargs, words)
        table = self._table_by_op.get(func)
        entry = None if table is None else table.entries.get(key)
        if entry is None or not self._is_servable(entry, words):
            return self._run(func, key, words, args, kwargs or {})
        returned = self._serve(entry, words, args, kwargs or {})
        self.rows.append(entry, words)
        if entry.is_random:
            self.rows.draws.note(self._registry.clock[0] - 1)
        return returned

    def _build_key(
        self,
        args: Sequence[Any],
        kwargs: Mapping[str, Any] | None,
        words: list[int],
    ) -> tuple[object, ...]:
        """Return all that decides a result; append the words of the tensors read."""
        read = self._registry.read
        parts: list[object] = [default_dtype(), is_deterministic()]
        for value in args:
            kind = type(value)
            if kind is Tensor or kind is Parameter:
                seen = read(value)
                parts.append(seen[2])
                words.append(seen[0])
            elif kind is int or value is None:
                parts.append(value)
            elif kind is list and value and type(value[0]) is int:
                parts.append(tuple(value))
            else:
                parts.append(self._encode(value, words))
        if kwargs:
            for name, value in kwargs.items():
                parts.append(name)
                parts.append(self._encode(value, words))
        return tuple(parts)

    def _encode(self, value: Any, words: list[int]) -> object:
        """Return what stands for any ``value`` in a key; append its tensors' words."""
        kind = type(value)
        if isinstance(value, Tensor):
            seen = self._registry.read(value)
            words.append(seen[0])
            return seen[2]
        if kind is list or kind is tuple:
            return tuple([self._encode(item, words) for item in value])
        if kind is float or kind is complex:
            return plain_float(value)
        if kind not in PLAIN:  # a generator, a function: known only in this recording
            self._is_opaque = True
            return (kind, id(value))
        return (kind, value)

    def _is_servable(self, entry: Entry, words: list[int]) -> bool:
        kind = entry.kind
        if kind != IN_PLACE:
            return kind != RUN and not self._is_opaque
        # What is written must not be read through another tensor as well.
        storage_by_tensor = self._registry.storage_by_tensor
        storages = {storage_by_tensor[number] for number in words[HEADER:]}
        return len(storages) == len(words) - HEADER

    def _serve(
        self,
        entry: Entry,
        words: list[int],
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
    ) -> Any:
        """Return what the kernel would, and append the words of its tensors."""
        kind, registry = entry.kind, self._registry
        if kind == PURE:
            tensor = make_tensor(entry.outputs[0])
            words.append(registry.add_fresh(tensor, entry.outputs[0]))
            return tensor
        if kind == VIEW:
            base, made = args[0], entry.outputs[0]
            view = as_strided(base, *made.as_strided)
            words.append(registry.add_view(view, registry.read(base), made))
            return view
        if kind == IN_PLACE:
            where = entry.rebuild
            if where is None or where == ():
                return where
            written = args[where] if isinstance(where, int) else kwargs[where]
            words.append(registry.read(written)[0])
            return written
        is_list, is_there = entry.rebuild
        geometries = iter(entry.outputs)
        many = [make_tensor(next(geometries)) if there else None for there in is_there]
        tensors = [tensor for tensor in many if tensor is not None]
        words += map(registry.add_fresh, tensors, entry.outputs)
        return many if is_list else tuple(many)

    def _run(
        self,
        func: Any,
        key: tuple[object, ...],
        words: list[int],
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
    ) -> Any:
        """Run the kernel, then record the call with what it returned."""
        registry = self._registry
        inputs = [(t, registry.read(t)) for t in tensors_in(args, kwargs)]
        n_storages, n_evaluated = registry.n_storages, len(self.values.evaluations)
        table = self._table_by_op.get(func) or self._cache.open(func)
        entries: dict[Any, Entry] = table.entries
        if self._is_opaque:
            self._is_opaque, entries, key = False, self._opaque_entries, (func, *key)
        draw = Drawing(args, kwargs, inputs) if table.is_random else None
        returned = self._call(table, args, kwargs, inputs, draw)
        registry.note_deaths()
        outputs = [(t, self._see_output(t, inputs)) for t in tensors_in(returned)]
        call = LiveCall(args, kwargs, returned, inputs, outputs)
        if not all(seen[2].is_meta for _, seen in outputs):
            if n_evaluated == len(self.values.evaluations):
                check_devices(table.name, call)
            self.constants.note_made(outputs)
            self._count_real(call, n_storages)
        if not table.is_pure:  # what it writes may be what it reads
            key = (*key, *sharing_of(inputs))
        words += [seen[0] for _, seen in outputs]
        self.rows.append(self._cache.intern(table, entries, key, call), words)
        if draw is not None and not draw.is_real:
            self.rows.draws.note(registry.clock[0] - 1, draw.generator)
        return returned

    def _call(
        self,
        table: OpTable,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        inputs: Sequence[tuple[Tensor, Seen]],
        draw: "Drawing | None",
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

    def _see_output(
        self, tensor: Tensor, inputs: Sequence[tuple[Tensor, Seen]]
    ) -> Seen:
        for argument, seen in inputs:
            if argument is tensor:
                return self._registry.renew(tensor, seen)
        return self._registry.add_output(tensor)

    def _count_real(self, call: LiveCall, n_storages: int) -> None:
        """Count the real memory that a call took; note it if nobody asked for it."""
        made = {
            seen[1].number: tensor.untyped_storage().nbytes()
            for tensor, seen in call.outputs
            if seen[1] is not None
            and seen[1].number >= n_storages
            and not seen[2].is_meta
        }
        self.nbytes_real += sum(made.values())
        function = self._places.function
        if made and not call.inputs and function not in device_constructors():
            name = describe_function(function) or "a torch.Tensor constructor"
            text = f"{name} ignored the meta device and made a real tensor on the CPU"
            line = self._places.current_line()
            self.notes.setdefault(Note(kind="factory", text=text, line=line))

    def _pass_foreign(
        self,
        func: Any,
        types: Sequence[type],
        args: Sequence[Any],
        kwargs: Mapping[str, Any] | None,
    ) -> tuple[Any] | None:
        """Let tensor subclasses run what they stand for; None if they are plain."""
        for kind in types:
            if kind.__name__ in TRACED and kind.__module__.startswith("torch."):
                self.n_foreign[kind.__name__] = self.n_foreign.get(kind.__name__, 0) + 1
                return (func(*args, **(kwargs or {})),)
            handler = getattr(kind, "__torch_dispatch__", None)
            if handler is not Tensor.__torch_dispatch__:
                return (NotImplemented,)  # what it does inside comes back here
        return None


def sharing_of(inputs: Sequence[tuple[Tensor, Seen]]) -> tuple[object, ...]:
    """Return which strided arguments are the same or share a storage."""
    return sharing([tensor for tensor, seen in inputs if seen[1] is not None])


class Drawing:
    """How a random operator draws.

    Attributes:
        generator: What it was told to draw from; None for torch's default.
        is_real: Whether it makes real numbers, and not just meta tensors.
    """

    def __init__(
        self,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        inputs: Sequence[tuple[Tensor, Seen]],
    ) -> None:
        values = (*args, *kwargs.values())
        found = (v for v in values if isinstance(v, torch.Generator))
        self.generator: torch.Generator | None = next(found, None)
        if inputs:
            self.is_real = not any(seen[2].is_meta for _, seen in inputs)
        else:
            device = kwargs.get("device")
            self.is_real = device is None or device.type != "meta"


class DispatchRecorder(Recorder, TorchDispatchMode):
    """The mode that is entered."""

    supports_higher_order_operators = True
