"""The operator cache: each signature interned once, for all recordings of a process.

The same operator with the same input metadata and arguments returns the same output
metadata. So a repeated call needs no kernel: it is a cache hit, and takes a *fast path*
that makes its outputs directly. Three kinds of operator have one (``choose_kind``):

* pure: the schema names no alias and no write; the outputs are new strided tensors;
* view: the outputs share the storage of the one input; one view is made again by
  ``as_strided``, several views, or a view that it cannot make, by the operator itself;
* in-place: the returns are the written arguments, whose metadata did not change.

A second key is for calls that differ only in a number (``generalize``): in each step an
optimizer divides by another bias correction, and a number decides neither the metadata
of an elementwise operator nor whether it is refused.

The key of a call (``build_operator_key``, which runs for every operator) holds all else
that decides the metadata of the result.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from math import copysign, isnan
from typing import Any, Final, TypeAlias

import torch
from torch import Generator, Tensor, UntypedStorage
from torch.nn import Parameter

from meta_magic.recording.identities.tensors import GeometryTable, Seen
from meta_magic.recording.signatures.entries import (
    PLAIN,
    Args,
    Entry,
    Kind,
    Kwargs,
    LiveCall,
    OpTable,
    find_written_statistics,
    plain_float,
)
from meta_magic.torch_private.distributed import describe_group
from meta_magic.torch_private.modes import is_deterministic
from meta_magic.torch_private.tensor_internals import is_zero_tensor
from meta_magic.trace.signature import (
    META,
    NAN,
    NEGATIVE_NAN,
    Argument,
    OpaqueArgument,
    Signature,
    TensorArgument,
)

DETACH: Final = "aten.detach.default"
"""Autograd saves results by this operator, while its own keys are active. An
``as_strided`` in its place would give the saved tensor a history, so that graph and
result form a cycle."""

COUNTED: Final = "counted"
"""Marks a returned ``None`` if each written tensor counts its own writes."""

NUMBER_LIMIT: Final = torch.finfo(torch.float16).max
"""Larger numbers do not fit all floating-point dtypes, and some operators refuse."""


class SignatureCache:
    """All operators and their signatures."""

    def __init__(self, *, uses_fast_paths: bool) -> None:
        self.geometries = GeometryTable()
        self.table_by_op: dict[object, OpTable] = {}
        self.uses_fast_paths = uses_fast_paths

    @property
    def n_entries(self) -> int:
        """Number of signatures."""
        return sum(len(t.entries) for t in self.table_by_op.values())

    def clear(self) -> None:
        """Drop all signatures."""
        for table in self.table_by_op.values():
            table.entries.clear()
            table.alike.clear()

    def open(self, func: Any) -> OpTable:
        """Return a new table for an operator that has none."""
        table = self.table_by_op[func] = OpTable(func)
        return table

    def intern(
        self, table: OpTable, entries: dict[Any, Entry], key: object, call: LiveCall
    ) -> Entry:
        """Return the entry of a call that ran; add it if its signature is new."""
        outputs = tuple([seen[2] for _, seen in call.outputs])
        entry = entries.get(key)
        if entry is not None and entry.outputs != outputs:
            # The key does not decide the result (storage sizes, data): one entry each.
            entries, key, entry = entry.variants, outputs, entry.variants.get(outputs)
        if entry is None:
            kind, rebuild = Kind.RUN, None
            if self.uses_fast_paths and table.has_fast_path(call):
                kind, rebuild = choose_kind(table, call)
            signature = describe_signature(table, call)
            entry = entries[key] = Entry(signature, outputs, int(kind), rebuild)
            entry.is_random = table.draws(call.args, call.kwargs)
            if entry.is_random:
                entry.drawn_on = signature.accelerator
            elif self.uses_fast_paths and not entry.allowed:
                entry.is_on_real = is_on_real(table, call)
            # All inputs have dtypes that hold any number below the limit.
            dtypes = [geometry.dtype for geometry in signature.inputs]
            is_floating = all(d.is_floating_point or d.is_complex for d in dtypes)
            if kind and table.is_elementwise and is_floating:
                table.alike.setdefault(generalize(key), entry)
        return entry


# Which fast path a signature has

VIEW_AS_DTYPE: Final = "aten.view.dtype"
"""Its result is an inference tensor where inference mode is on, whatever the input."""


def choose_kind(table: OpTable, call: LiveCall) -> tuple[Kind, Any]:
    """Return the kind of a call's entry, and the ``rebuild`` of that entry."""
    if not all(
        seen[2].is_makeable and type(tensor) in (Tensor, torch.nn.Parameter)
        for tensor, seen in (*call.inputs, *call.outputs)
    ):
        return Kind.RUN, None
    if table.written:
        return choose_in_place(table, call)
    if has_plain_views(call) and table.name != VIEW_AS_DTYPE:
        if not isinstance(call.returned, Tensor):
            return Kind.VIEW_MANY, table.func
        return Kind.VIEW, table.func if table.name == DETACH else None
    if table.is_pure and call.outputs:
        return choose_pure(call)
    return Kind.RUN, None


def choose_pure(call: LiveCall) -> tuple[Kind, Any]:
    """Choose for new tensors; none if they share a storage against the schema."""
    before = {seen[1] for _, seen in call.inputs}
    after = {seen[1] for _, seen in call.outputs}
    if before & after or len(after) < len(call.outputs):
        return Kind.RUN, None
    returned = call.returned
    if not all(is_as_empty_strided(*output) for output in call.outputs):
        # A scalar, such as a mean, may be on a storage of many elements.
        if (
            not isinstance(returned, Tensor)
            or returned.ndim
            or returned.storage_offset()
            or is_zero_tensor(returned)
        ):
            return Kind.RUN, None
        return Kind.PURE_WIDE, returned.untyped_storage().nbytes()
    if isinstance(returned, Tensor):
        return Kind.PURE, None
    if not isinstance(returned, (tuple, list)) or not all(
        item is None or isinstance(item, Tensor) for item in returned
    ):
        return Kind.RUN, None
    # None is an output that was not asked for, such as a gradient.
    is_there = tuple(item is not None for item in returned)
    return Kind.PURE_MANY, (isinstance(returned, list), is_there)


def choose_in_place(table: OpTable, call: LiveCall) -> tuple[Kind, Any]:
    """Choose for a write that returns arguments; no fast path if metadata changed."""
    for tensor, seen in (*call.inputs, *call.outputs):
        before = next((s for t, s in call.inputs if t is tensor), None)
        if before is None or before[1:] != seen[1:] or not is_as_seen(tensor, before):
            return Kind.RUN, None
    returned = call.returned
    if table.counts_writes:
        return Kind.IN_PLACE, COUNTED
    if returned is None or (type(returned) is tuple and not returned):
        return Kind.IN_PLACE, returned
    if isinstance(returned, Tensor):
        for at, value in (*enumerate(call.args), *call.kwargs.items()):
            if value is returned:
                return Kind.IN_PLACE, at
    return Kind.RUN, None


def has_plain_views(call: LiveCall) -> bool:
    """Whether the outputs are new tensors on the storage of the one input.

    Not in the schema: ``aten._unsafe_view`` shares it, ``aten.lift_fresh`` returns it.
    """
    if len(call.inputs) != 1 or not call.outputs:
        return False
    base, before = call.inputs[0]
    return call.args[0] is base and all(
        view is not base and after[1] is before[1] and view.dtype is base.dtype
        for view, after in call.outputs
    )


def is_on_real(table: OpTable, call: LiveCall) -> bool:
    """Whether a call reads or writes one real tensor, and makes no new tensor."""
    is_odd = table.has_out or table.may_overrun or not table.name.startswith("aten.")
    if is_odd or len(call.inputs) != 1 or torch.Tag.inplace_view in table.func.tags:
        return False
    real, before = call.inputs[0]
    return (
        type(real) in (Tensor, torch.nn.Parameter)
        and before[2].is_real
        and "device" not in call.kwargs
        and all(made is real and after == before for made, after in call.outputs)
        and (call.returned is real) == bool(table.written)
    )


def is_as_seen(tensor: Tensor, seen: Seen) -> bool:
    """Whether a strided tensor still has the geometry that it had."""
    record = seen[2].record
    return (
        tuple(tensor.shape) == record.shape
        and tensor.stride() == record.stride
        and tensor.storage_offset() == record.storage_offset
        and tensor.dtype == record.dtype
    )


def is_as_empty_strided(tensor: Tensor, seen: Seen) -> bool:
    """Whether ``torch.empty_strided`` makes the same tensor, on as large a storage."""
    record = seen[2].record
    if record.storage_offset != 0 or record.stride is None or is_zero_tensor(tensor):
        return False
    dtype = record.dtype
    again = torch.empty_strided(record.shape, record.stride, dtype=dtype, device=META)
    return again.untyped_storage().nbytes() == tensor.untyped_storage().nbytes()


# Calls that differ in a number only


def generalize(key: object) -> object:
    """Return a key in which each ordinary float is replaced by its sign."""
    if type(key) is not tuple:
        return key
    if len(key) == 2 and key[0] is float and type(key[1]) is float:  # noqa: PLR2004
        value = key[1]
        return (float, value > 0) if abs(value) <= NUMBER_LIMIT else key
    return tuple(map(generalize, key))


def derive(known: Entry, table: OpTable, args: Args, kwargs: Kwargs) -> Entry:
    """Return the entry of a call that differs from a known one in numbers only."""
    arguments = Describer().describe_arguments(table.arguments, args, kwargs)
    signature = replace(known.signature, arguments=arguments)
    return Entry(signature, known.outputs, known.kind, known.rebuild)


Key: TypeAlias = tuple[object, ...]

default_dtype = torch.get_default_dtype


def build_operator_key(
    read: Callable[[Tensor], Seen], args: Args, kwargs: Kwargs | None, words: list[int]
) -> Key:
    """Return the key of a call; append the numbers of its tensors to its row."""
    parts: list[object] = [default_dtype(), is_deterministic()]
    for value in args:
        kind = type(value)
        if kind is Tensor or kind is Parameter:
            seen = read(value)
            parts.append(seen[2])
            words.append(seen[0])
        elif kind is int or value is None:
            parts.append(value)
        elif kind is float:
            parts.append(plain_float(value))
        elif kind is list and value and type(value[0]) is int:
            parts.append(tuple(value))
        else:
            parts.append(encode(read, value, words))
    if kwargs:
        for name, value in kwargs.items():
            parts.append(name)
            parts.append(encode(read, value, words))
    return tuple(parts)


def encode(read: Callable[[Tensor], Seen], value: Any, words: list[int]) -> object:
    """Return the part of a key for any value; append the numbers of its tensors."""
    kind = type(value)
    if kind is float or kind is complex:
        return plain_float(value)
    if kind in PLAIN:
        return (kind, value)
    if kind is list or kind is tuple:
        return tuple([encode(read, item, words) for item in value])
    if isinstance(value, Tensor):
        seen = read(value)
        words.append(seen[0])
        return seen[2]
    return describe_opaque(value)  # not its id(), which another object may get later


def has_opaque(key: Key) -> bool:
    """Whether a key has a part that different objects share, such as generators."""
    for part in key:
        if type(part) is OpaqueArgument or (type(part) is tuple and has_opaque(part)):
            return True
    return False


def describe_opaque(value: object) -> OpaqueArgument:
    """Return the description of a value that is not plain."""
    if isinstance(value, (Generator, UntypedStorage)):
        # torch's text for them is an address, or all bytes of the storage.
        return OpaqueArgument(f"{type(value).__name__} on {value.device}")
    text = describe_group(value)
    return OpaqueArgument(text or f"{type(value).__name__} {str(value)[:200]}")


def describe_signature(table: OpTable, call: LiveCall) -> Signature:
    """Return the plain record that ``call`` shares with all calls of its key."""
    describer = Describer()
    storages = [seen[1] for _, seen in call.inputs]
    arguments = describer.describe_arguments(table.arguments, call.args, call.kwargs)
    written = table.written | find_written_statistics(table.name, arguments)
    return Signature(
        op=table.name,
        arguments=arguments,
        returns=Describer(reads_data=table.reads_data).describe(call.returned),
        inputs=tuple(seen[2].record for _, seen in call.inputs),
        outputs=tuple(seen[2].record for _, seen in call.outputs),
        writes=describer.positions(written),
        views=tuple(
            storages.index(seen[1]) if seen[1] and seen[1] in storages else None
            for _, seen in call.outputs
        ),
    )


class Describer:
    """Turns live arguments into plain ones, and numbers the tensors among them."""

    def __init__(self, *, reads_data: bool = False) -> None:
        self._reads_data = reads_data
        self._n_tensors = 0
        self._span_by_name: dict[str, range] = {}

    def describe_arguments(
        self, names: Sequence[str], args: Sequence[object], kwargs: Mapping[str, object]
    ) -> tuple[tuple[str, Argument], ...]:
        """Return (name, plain value) pairs of a call's arguments."""
        described = []
        positional = (
            (names[i] if i < len(names) else str(i), value)
            for i, value in enumerate(args)
        )
        for name, value in (*positional, *kwargs.items()):
            start = self._n_tensors
            described.append((name, self.describe(value)))
            self._span_by_name[name] = range(start, self._n_tensors)
        return tuple(described)

    def positions(self, names: Iterable[str]) -> tuple[int, ...]:
        """Return the tensor numbers that belong to the arguments ``names``."""
        spans = (self._span_by_name.get(name, range(0)) for name in names)
        return tuple(sorted(number for span in spans for number in span))

    def describe(self, value: object) -> Argument:
        """Return the plain description of ``value``."""
        if isinstance(value, Tensor):
            self._n_tensors += 1
            return TensorArgument(self._n_tensors - 1)
        if isinstance(value, (tuple, list)):
            return tuple(self.describe(item) for item in value)
        if self._reads_data and value is not None:
            return OpaqueArgument(f"a value of type {type(value).__name__}")
        if isinstance(value, float) and isnan(value):
            return NAN if copysign(1, value) > 0 else NEGATIVE_NAN
        return value if type(value) in PLAIN else describe_opaque(value)
