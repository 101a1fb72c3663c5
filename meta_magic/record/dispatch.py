"""The dispatch mode: records every operator, and serves those it has seen.

The hot path of the package. One call appends one row of integers:
signature, place, module call, forward call, then a word per tensor read or returned.
"""

import sys
from array import array
from collections.abc import Mapping, Sequence
from typing import Any, Final

import torch
from torch import Tensor
from torch.nn import Parameter

from meta_magic.record.mixed import check_devices, explain_mix
from meta_magic.record.module_calls import ModuleCalls
from meta_magic.record.places import BACKWARD, Places, describe_function
from meta_magic.record.signatures import (
    PLAIN,
    Entry,
    Kind,
    LiveCall,
    OpTable,
    SignatureCache,
    tensors_in,
)
from meta_magic.record.tensors import Seen, TensorRegistry
from meta_magic.record.torch_private import (
    TorchDispatchMode,
    current_autograd_node,
    device_constructors,
    is_deterministic,
    next_sequence_number,
)

from meta_magic.trace.records import Note

__all__ = ["DispatchRecorder"]

META: Final = torch.device("meta")
PLAIN_TENSORS: Final = frozenset({Tensor, Parameter})
TRACED: Final = ("FakeTensor", "FunctionalTensor")
FLUSH_AT: Final = 16384

# Plain integers: comparing members of an enum costs a call each.
PURE, VIEW = int(Kind.PURE), int(Kind.VIEW)
IN_PLACE, PURE_MANY = int(Kind.IN_PLACE), int(Kind.PURE_MANY)

empty_strided = torch.empty_strided
as_strided = torch.as_strided
default_dtype = torch.get_default_dtype


class Recorder:
    """What the dispatch mode does.

    A plain class, mixed in below: torch wraps ``__torch_dispatch__`` of a direct
    subclass of ``TorchDispatchMode`` so that the first operator imports dynamo.

    Attributes:
        rows: The rows of all calls, after :meth:`flush`.
        entries: The signatures met, in order of first call.
        notes: Factories that made real tensors without being told to, with their line.
        nbytes_real: Bytes of the storages that operators made on a real device.
        n_foreign: Calls that were not recorded, by the class of tensor they were on.
    """

    def __init__(
        self,
        registry: TensorRegistry,
        places: Places,
        calls: ModuleCalls,
        cache: SignatureCache,
    ) -> None:
        super().__init__()
        self.rows = array("I")
        self.entries: list[Entry] = []
        self.notes: dict[Note, None] = {}
        self.nbytes_real = 0
        self.n_foreign: dict[str, int] = {}
        self._buffer: list[int] = []
        self._registry = registry
        self._places = places
        self._calls = calls
        self._cache = cache
        self._table_by_op = cache.table_by_op
        self._number_by_entry: dict[Entry, int] = {}
        self._last_sequence = -1
        self._forward_by_sequence: dict[int, tuple[int, int]] = {}
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
        table = self._table_by_op.get(func) or self._cache.open(func)
        registry = self._registry
        words = [0, 0, 0, 0]
        key = [default_dtype(), is_deterministic()]
        for value in args:
            kind = type(value)
            if kind is Tensor or kind is Parameter:
                seen = registry.read(value)
                key.append(seen[2])
                words.append(seen[0] << 1 | value.requires_grad)
            elif kind is int or value is None:
                key.append(value)
            elif kind is list and value and type(value[0]) is int:
                key.append(tuple(value))
            else:
                key.append(self._encode(value, words))
        if kwargs:
            for name, value in kwargs.items():
                key.append(name)
                key.append(self._encode(value, words))
        key = tuple(key)
        if self._is_opaque:
            return self._run(func, table, key, words, args, kwargs)
        entry = table.entries.get(key)
        if entry is None:
            return self._run(func, table, key, words, args, kwargs)
        kind = entry.kind
        if kind == PURE:
            geometry = entry.geometry
            returned = empty_strided(
                geometry.shape, geometry.stride, dtype=entry.dtype, device=META
            )
            words.append(registry.add_fresh(returned, geometry) << 1)
        elif kind == VIEW:
            geometry = entry.geometry
            returned = as_strided(
                args[0], geometry.shape, geometry.stride, geometry.offset
            )
            words.append(registry.add_view(returned, seen, geometry) << 1)
        elif kind == PURE_MANY:
            returned = self._serve_many(entry, words)
        elif kind == IN_PLACE and self._is_unshared(words):
            returned = self._serve_in_place(entry, words, args, kwargs)
        else:
            return self._run(func, table, key, words, args, kwargs)
        self._append(entry, words)
        return returned

    def _append(self, entry: Entry, words: list[int]) -> None:
        """Append the row of one call."""
        number = self._number_by_entry.get(entry)
        if number is None:
            number = self._number_by_entry[entry] = len(self.entries)
            self.entries.append(entry)
        places, calls, registry = self._places, self._calls, self._registry
        node = current_autograd_node()
        if node is None or calls.is_in_backward:
            place = places.place
            if not place:
                frame = places.frame or sys._getframe(2)
                place = places.locate(frame, calls.entry, calls.site)
                places.place = place if places.function is not None else 0
            words[2] = calls.word or places.owner
        else:
            place, words[3] = self._tie(node)
        words[0] = number
        words[1] = place
        sequence = next_sequence_number()
        if sequence != self._last_sequence:
            self._last_sequence = sequence
            self._forward_by_sequence[sequence - 1] = (registry.clock[0], place)
        registry.clock[0] += 1
        self._buffer += words
        if len(self._buffer) > FLUSH_AT:
            self.flush()

    def _tie(self, node: Any) -> tuple[int, int]:
        """Return place and forward call + 1 of an operator that ``node`` issued."""
        places = self._places
        forward = self._forward_by_sequence.get(node._sequence_nr())
        if forward is not None:
            return places.backward_of(forward[1]), forward[0] + 1
        frame = places.frame or sys._getframe(3)
        return places.locate(frame, None, (0, 0), BACKWARD), 0

    def flush(self) -> None:
        """Move the rows out of the buffer."""
        self.rows.fromlist(self._buffer)
        self._buffer.clear()

    def _is_unshared(self, words: list[int]) -> bool:
        """Whether the tensors read lie on different storages."""
        storage_by_tensor = self._registry.storage_by_tensor
        return len({storage_by_tensor[w >> 1] for w in words[4:]}) == len(words) - 4

    def _serve_many(self, entry: Entry, words: list[int]) -> Any:
        is_list, is_there = entry.rebuild
        geometries = iter(entry.outputs)
        made: list[Tensor | None] = []
        for there in is_there:
            tensor = None
            if there:
                geometry = next(geometries)
                tensor = empty_strided(
                    geometry.shape,
                    geometry.stride,
                    dtype=geometry.record.dtype,
                    device=META,
                )
                words.append(self._registry.add_fresh(tensor, geometry) << 1)
            made.append(tensor)
        return made if is_list else tuple(made)

    def _serve_in_place(
        self,
        entry: Entry,
        words: list[int],
        args: Sequence[Any],
        kwargs: Mapping[str, Any] | None,
    ) -> Any:
        where = entry.rebuild
        if where is None or where == ():
            return where
        returned = args[where] if isinstance(where, int) else (kwargs or {})[where]
        words.append(self._registry.read(returned)[0] << 1)
        return returned

    def _run(
        self,
        func: Any,
        table: OpTable,
        key: tuple[object, ...],
        words: list[int],
        args: Sequence[Any],
        kwargs: Mapping[str, Any] | None,
    ) -> Any:
        """Run the kernel, then record the call with what it returned."""
        kwargs = kwargs or {}
        is_opaque, self._is_opaque = self._is_opaque, False
        registry = self._registry
        tensors = tensors_in(args, kwargs)
        before = [registry.read(tensor) for tensor in tensors]
        try:
            returned = func(*args, **kwargs)
        except Exception as error:
            explain_mix(error, tensors)
            raise
        n_storages = registry.n_storages
        outputs: list[tuple[Tensor, Seen]] = []
        for tensor in tensors_in(returned):
            index = next((i for i, t in enumerate(tensors) if t is tensor), None)
            seen = (
                registry.add_output(tensor)
                if index is None
                else registry.renew(tensor, before[index])
            )
            outputs.append((tensor, seen))
            words.append(seen[0] << 1)
        inputs = list(zip(tensors, before, strict=True))
        call = LiveCall(args, kwargs, returned, inputs, outputs)
        entries = self._opaque_entries if is_opaque else table.entries
        entry = self._cache.intern(table, entries, (func, *key) if is_opaque else key, call)
        if not all(seen[2].is_meta for _, seen in outputs):
            check_devices(table.name, call)
            self._count_real(call, n_storages)
        self._append(entry, words)
        return returned

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
        places = self._places
        if made and not call.inputs and places.function not in device_constructors():
            name = describe_function(places.function) or "a torch.Tensor constructor"
            _, line, _ = places.walk(places.frame or sys._getframe(3), None, (0, 0))
            text = f"{name} ignored the meta device and made a real tensor on the CPU"
            self.notes.setdefault(Note(kind="factory", text=text, line=line or None))

    def _encode(self, value: Any, words: list[int]) -> object:
        """Return what stands for ``value`` in a key; append the words of its tensors."""
        kind = type(value)
        if isinstance(value, Tensor):
            seen = self._registry.read(value)
            words.append(seen[0] << 1 | value.requires_grad)
            return seen[2]
        if kind is list or kind is tuple:
            return tuple([self._encode(item, words) for item in value])
        if kind is float:
            # Negative zero and nan equal others or nothing: told apart by their text.
            return (float, value if value == value and value else repr(value))
        if kind not in PLAIN:
            self._is_opaque = True
            return (kind, id(value))
        return (kind, value)

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
            if kind.__torch_dispatch__ is not Tensor.__torch_dispatch__:
                return (NotImplemented,)  # what it does inside comes back here
        return None


class DispatchRecorder(Recorder, TorchDispatchMode):
    """The mode that is entered."""

    supports_higher_order_operators = True
