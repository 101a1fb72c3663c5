"""Intern signatures, and say which calls may be answered without their kernel.

The same operator on the same input metadata with the same arguments gives the same
output metadata. A repeated call is therefore *served*: its outputs are made straight
away. Three kinds of operator qualify, and everything else runs:

* pure: the schema names no alias and no write; the outputs are new strided tensors;
* view: the one output shares the storage of the one input, remade with ``as_strided``;
* in-place: the returns are the written arguments, whose metadata did not change.
"""

from collections.abc import Iterable, Mapping, Sequence
from enum import IntEnum
from math import isnan
from types import EllipsisType, NoneType
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor

from meta_magic.recording.tensors import GeometryTable, LiveGeometry, Seen
from meta_magic.trace.program import (
    Argument,
    OpaqueArgument,
    Signature,
    TensorArgument,
)

__all__ = [
    "PLAIN",
    "Entry",
    "Kind",
    "LiveCall",
    "OpTable",
    "SignatureCache",
    "tensors_in",
]

UNSERVED_TAGS: Final = frozenset(
    {
        torch.Tag.dynamic_output_shape,
        torch.Tag.data_dependent_output,
        torch.Tag.inplace_view,
    }
)
UNSERVED: Final = frozenset({"aten.detach.default"})
"""Autograd saves results by it with its own keys active: an ``as_strided`` in its place
would give the saved tensor a history, and so tie graph and result into a cycle."""

PLAIN: Final = frozenset(
    {int, float, bool, complex, str, NoneType, EllipsisType}
    | {torch.dtype, torch.device, torch.layout, torch.memory_format}
)


class Kind(IntEnum):
    """How the calls of one signature are answered."""

    RUN = 0
    PURE = 1
    PURE_MANY = 2
    VIEW = 3
    IN_PLACE = 4


class LiveCall(NamedTuple):
    """One call that ran: what went in, what came out.

    Attributes:
        args: Positional arguments.
        kwargs: Keyword arguments.
        returned: What the operator returned.
        inputs: The tensor arguments with what was known of them before the call.
        outputs: The tensors returned with what is known of them now.
    """

    args: Sequence[object]
    kwargs: Mapping[str, object]
    returned: object
    inputs: Sequence[tuple[Tensor, Seen]]
    outputs: Sequence[tuple[Tensor, Seen]]


class Entry:
    """A signature while recording.

    Attributes:
        signature: The plain record.
        outputs: Geometry of each tensor returned.
        geometry: The first of them.
        dtype: Its element type.
        kind: How its calls are answered, a :class:`Kind`.
        rebuild: What ``PURE_MANY`` and ``IN_PLACE`` need to build the return value.
        variants: Entries of the same call whose outputs came out otherwise.
    """

    __slots__ = (
        "dtype",
        "geometry",
        "kind",
        "outputs",
        "rebuild",
        "signature",
        "variants",
    )

    def __init__(
        self,
        signature: Signature,
        outputs: tuple[LiveGeometry, ...],
        kind: int,
        rebuild: Any,
    ) -> None:
        self.signature = signature
        self.outputs = outputs
        self.geometry = outputs[0] if outputs else None
        self.dtype = outputs[0].record.dtype if outputs else None
        self.kind = kind
        self.rebuild = rebuild
        self.variants: dict[tuple[LiveGeometry, ...], Entry] = {}


class OpTable:
    """What the schema of one operator says, and the entries of its calls so far."""

    def __init__(self, func: Any) -> None:
        schema = getattr(func, "_schema", None)
        arguments = () if schema is None else tuple(schema.arguments)
        returned = () if schema is None else tuple(schema.returns)
        aliases = [a.alias_info for a in arguments if a.alias_info is not None]
        self.name = f"higher_order.{func}" if schema is None else str(func)
        self.arguments = tuple(a.name for a in arguments)
        self.written = frozenset(
            a.name for a in arguments if a.alias_info and a.alias_info.is_write
        )
        self.is_served = schema is not None and not UNSERVED_TAGS.intersection(
            func.tags
        )
        self.is_pure = not aliases and not any(r.alias_info for r in returned)
        self.entries: dict[tuple[object, ...], Entry] = {}


class SignatureCache:
    """Everything known of operators and their signatures.

    Attributes:
        geometries: The geometries that keys are made of.
        table_by_op: One table for each operator met.
        template_by_key: What torch's functions do, by what they are called with.
        is_pure_by_function: Which functions may be served at all.
    """

    def __init__(self, *, is_serving: bool) -> None:
        self.geometries = GeometryTable()
        self.table_by_op: dict[object, OpTable] = {}
        self.template_by_key: dict[object, Any] = {}
        self.is_pure_by_function: dict[object, bool] = {}
        self.is_serving = is_serving

    @property
    def n_entries(self) -> int:
        """Signatures held."""
        n_templates = len(self.template_by_key)
        return n_templates + sum(len(t.entries) for t in self.table_by_op.values())

    def clear(self) -> None:
        """Forget all signatures."""
        for table in self.table_by_op.values():
            table.entries.clear()
        self.template_by_key.clear()

    def open(self, func: Any) -> OpTable:
        """Return the table of an operator met for the first time."""
        table = self.table_by_op[func] = OpTable(func)
        return table

    def intern(
        self,
        table: OpTable,
        entries: dict[Any, Entry],
        key: object,
        call: LiveCall,
    ) -> Entry:
        """Return the entry of a call that ran; add it when it is the first such."""
        outputs = tuple([seen[2] for _, seen in call.outputs])
        entry = entries.get(key)
        if entry is not None and entry.outputs != outputs:
            # The key does not decide the result (storage sizes, data): one entry each.
            entries, key, entry = entry.variants, outputs, entry.variants.get(outputs)
        if entry is None:
            kind, rebuild = Kind.RUN, None
            if self.is_serving and table.is_served:
                kind, rebuild = choose_kind(table, call)
            signature = describe_signature(table, call)
            entry = entries[key] = Entry(signature, outputs, int(kind), rebuild)
        return entry


def choose_kind(table: OpTable, call: LiveCall) -> tuple[Kind, Any]:
    """Return how later calls with this signature may be answered, and with what."""
    if not all(
        seen[2].is_servable and type(tensor) in (Tensor, torch.nn.Parameter)
        for tensor, seen in (*call.inputs, *call.outputs)
    ):
        return Kind.RUN, None
    if table.written:
        return choose_in_place(call)
    if table.name not in UNSERVED and is_plain_view(call):
        return Kind.VIEW, None
    if table.is_pure and call.outputs:
        return choose_pure(call)
    return Kind.RUN, None


def choose_pure(call: LiveCall) -> tuple[Kind, Any]:
    """Serve new tensors, unless some share a storage against their schema."""
    before = {seen[1] for _, seen in call.inputs}
    after = {seen[1] for _, seen in call.outputs}
    if before & after or len(after) < len(call.outputs):
        return Kind.RUN, None
    if not all(is_as_empty_strided(*output) for output in call.outputs):
        return Kind.RUN, None
    returned = call.returned
    if isinstance(returned, Tensor):
        return Kind.PURE, None
    if not isinstance(returned, (tuple, list)) or not all(
        item is None or isinstance(item, Tensor) for item in returned
    ):
        return Kind.RUN, None
    # An output that the operator left out, such as a gradient nobody asked for.
    is_there = tuple(item is not None for item in returned)
    return Kind.PURE_MANY, (isinstance(returned, list), is_there)


def is_plain_view(call: LiveCall) -> bool:
    """Whether the one output is a new tensor on the storage of the one input.

    Judged by what happened, not by the schema: ``aten._unsafe_view`` shares a storage
    that its schema does not admit to, and ``aten.lift_fresh`` returns its argument.
    """
    if not isinstance(call.returned, Tensor) or len(call.inputs) != 1:
        return False
    (base, before), (view, after) = call.inputs[0], call.outputs[0]
    is_new = view is not base and call.args[0] is base
    return is_new and before[1] is after[1] and view.dtype is base.dtype


def choose_in_place(call: LiveCall) -> tuple[Kind, Any]:
    """Serve a write that returns arguments and left all metadata as it was."""
    for tensor, seen in (*call.inputs, *call.outputs):
        before = next((s for t, s in call.inputs if t is tensor), None)
        if before is None or before[1:] != seen[1:] or not is_as_seen(tensor, before):
            return Kind.RUN, None
    returned = call.returned
    if returned is None or returned == ():
        return Kind.IN_PLACE, returned
    if isinstance(returned, Tensor):
        for where in (*range(len(call.args)), *call.kwargs):
            if argument_at(where, call) is returned:
                return Kind.IN_PLACE, where
    return Kind.RUN, None


def argument_at(where: int | str, call: LiveCall) -> object:
    """Return a positional argument by its index or a keyword argument by its name."""
    return call.args[where] if isinstance(where, int) else call.kwargs[where]


def is_as_seen(tensor: Tensor, seen: Seen) -> bool:
    """Whether a strided tensor still has the geometry it had."""
    record = seen[2].record
    return (
        tuple(tensor.shape) == record.shape
        and tensor.stride() == record.stride
        and tensor.storage_offset() == record.storage_offset
        and tensor.dtype == record.dtype
    )


def is_as_empty_strided(tensor: Tensor, seen: Seen) -> bool:
    """Whether ``torch.empty_strided`` would make the same tensor, to the byte."""
    record = seen[2].record
    if record.storage_offset != 0 or record.stride is None or tensor._is_zerotensor():
        return False
    again = torch.empty_strided(
        record.shape, record.stride, dtype=record.dtype, device="meta"
    )
    return again.untyped_storage().nbytes() == tensor.untyped_storage().nbytes()


def describe_signature(table: OpTable, call: LiveCall) -> Signature:
    """Return the plain record of what ``call`` shares with its like."""
    describer = Describer()
    storages = [seen[1] for _, seen in call.inputs]
    arguments = describer.describe_arguments(table.arguments, call.args, call.kwargs)
    return Signature(
        op=table.name,
        arguments=arguments,
        returns=Describer().describe(call.returned),
        inputs=tuple(seen[2].record for _, seen in call.inputs),
        outputs=tuple(seen[2].record for _, seen in call.outputs),
        writes=describer.positions(table.written),
        views=tuple(
            storages.index(seen[1]) if seen[1] and seen[1] in storages else None
            for _, seen in call.outputs
        ),
    )


class Describer:
    """Turn live arguments into plain ones, numbering the tensors on the way."""

    def __init__(self) -> None:
        self._n_tensors = 0
        self._span_by_name: dict[str, range] = {}

    def describe_arguments(
        self,
        names: Sequence[str],
        args: Sequence[object],
        kwargs: Mapping[str, object],
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
        """Return a plain stand-in for ``value``."""
        if isinstance(value, Tensor):
            self._n_tensors += 1
            return TensorArgument(self._n_tensors - 1)
        if isinstance(value, (tuple, list)):
            return tuple(self.describe(item) for item in value)
        if isinstance(value, float) and isnan(value):
            return OpaqueArgument("float nan")  # equal records must be equal
        if type(value) in PLAIN:
            return value
        return OpaqueArgument(f"{type(value).__name__} {str(value)[:200]}")


def plain_float(value: float) -> object:
    """Return what stands for a float in a key.

    Negative zero equals zero and nan equals nothing: told apart by their text.
    """
    is_ordinary = value and value == value  # noqa: PLR0124  nan is not
    return (float, value if is_ordinary else repr(value))


def sharing(tensors: Sequence[Tensor]) -> tuple[object, ...]:
    """Return which tensors are the same or share a storage; () if none do."""
    storages = [tensor.untyped_storage()._cdata for tensor in tensors]
    if len(set(storages)) == len(storages):
        return ()
    ids = list(map(id, tensors))
    return tuple(map(ids.index, ids)), tuple(map(storages.index, storages))


def tensors_in(*values: object) -> list[Tensor]:
    """Return the tensors in ``values`` in order, looking into lists and tuples."""
    found: list[Tensor] = []
    for value in values:
        if isinstance(value, Tensor):
            found.append(value)
        elif isinstance(value, (list, tuple)):
            found.extend(tensors_in(*value))
        elif isinstance(value, dict):
            found.extend(tensors_in(*value.values()))
    return found
