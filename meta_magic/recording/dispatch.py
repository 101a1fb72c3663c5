"""The dispatch mode: meets every operator, and serves those whose answer is known."""

from collections.abc import Mapping, Sequence
from typing import Any, Final, Self

import torch
from torch import Tensor
from torch.nn import Parameter

from meta_magic.recording.live import (
    PLAIN,
    Entry,
    Kind,
    plain_float,
)
from meta_magic.recording.rows import make_tensor
from meta_magic.recording.running import Runner
from meta_magic.recording.torch_private import (
    TorchDispatchMode,
    function_mode_stack,
    is_deterministic,
    n_dispatch_modes,
)
from meta_magic.trace.program import HEADER

__all__ = ["DispatchRecorder"]

PLAIN_TENSORS: Final = frozenset({Tensor, Parameter})

# Plain integers: the attribute of an enum costs more than the comparison.
RUN, PURE, VIEW, IN_PLACE = map(int, (Kind.RUN, Kind.PURE, Kind.VIEW, Kind.IN_PLACE))

as_strided = torch.as_strided
default_dtype = torch.get_default_dtype


class Recorder(Runner):
    """What the dispatch mode does.

    A plain class, mixed in below: torch wraps ``__torch_dispatch__`` of a direct
    subclass of ``TorchDispatchMode`` so that the first operator imports dynamo.
    """

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Record one operator call and return what it returns."""
        if types and not PLAIN_TENSORS.issuperset(types):
            foreign = self.foreign.pass_on(func, types, args, kwargs)
            if foreign is not None:
                return foreign[0]
        self._registry.note_deaths()
        words = [0] * HEADER
        key = self._build_key(args, kwargs, words)
        table = self._table_by_op.get(func)
        entry = None if table is None else table.entries.get(key)
        # A mode below, as make_fx has it, must see the operator, not its result.
        if entry is None or n_dispatch_modes() or not self._is_servable(entry, words):
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


class DispatchRecorder(Recorder, TorchDispatchMode):
    """The mode that is entered.

    Attributes:
        functions: The function mode that was entered just before it.
    """

    supports_higher_order_operators = True
    functions: Any = None

    def __enter__(self) -> Self:
        self.functions = function_mode_stack()[-1]
        super().__enter__()
        return self

    def __exit__(self, *exception: object) -> None:
        self.functions = None
        super().__exit__(*exception)
