"""What is known of operators while recording: one call, one signature, one schema."""

from collections.abc import Iterable, Mapping, Sequence
from enum import IntEnum
from math import copysign
from types import EllipsisType, NoneType
from typing import Any, Final, NamedTuple, TypeAlias

import torch
from torch import Tensor

from meta_magic.recording.identities.geometries import LiveGeometry
from meta_magic.recording.identities.tensors import Seen
from meta_magic.recording.signatures.allowed_values import find_allowed
from meta_magic.torch_private.dispatcher import OpOverload, find_schema, has_kernel
from meta_magic.trace.signature import Argument, Signature

Args: TypeAlias = Sequence[Any]
"""Positional arguments: whatever torch takes."""

Kwargs: TypeAlias = Mapping[str, Any]
"""Keyword arguments."""

Inputs: TypeAlias = Sequence[tuple[Tensor, Seen]]
"""The tensors among the arguments, with what is known of them before the call."""


class Given(NamedTuple):
    """What one operator is called with.

    Attributes:
        args: Positional arguments.
        kwargs: Keyword arguments.
        inputs: The tensors among both.
    """

    args: Args
    kwargs: Kwargs
    inputs: Inputs


OF_C10D: Final = "c10d."
SENDING: Final = "c10d.send.default"
REDUCED: Final = "tensors"
"""Name of what a collective reads and writes; what it only writes is an output."""

OTHERS: Final[Mapping[str, frozenset[str]]] = {
    "fsdp.all_gather_copy_in.default": frozenset({"all_gather_output"}),
}

STATISTICS: Final = frozenset({"running_mean", "running_var"})
WRITING_STATISTICS: Final = frozenset(
    f"aten.{name}.{variant}"
    for variant in ("default", "out")
    for name in (
        "native_batch_norm",
        "cudnn_batch_norm",
        "miopen_batch_norm",
        "batch_norm_update_stats",
        "batch_norm_gather_stats",
        "batch_norm_gather_stats_with_counts",
    )
)
"""Operators that write the statistics, unless they are told that this is no
training."""


def find_always_written(op: str, names: Sequence[str]) -> frozenset[str]:
    """Return the arguments that each call of an operator writes undeclared."""
    reduced = {REDUCED} & {*names} if is_collective(op) else set()
    return OTHERS.get(op, frozenset()) | find_overwritten(op, names) | reduced


def find_overwritten(op: str, names: Sequence[str]) -> frozenset[str]:
    """Return the arguments of which a collective writes all and reads nothing.

    Source:
        ``FakeProcessGroup.hpp`` and ``ProcessGroupGloo.cpp`` of torch 2.13: each output
        is copied to, by the group that sends nothing as well.
    """
    outputs = (name for name in names if name.startswith("output"))
    return frozenset(outputs if is_collective(op) else ())


def find_written_statistics(
    op: str, arguments: Iterable[tuple[str, Argument]]
) -> frozenset[str]:
    """Return the arguments that a call of a batch norm writes undeclared."""
    is_writing = op in WRITING_STATISTICS and ("training", False) not in arguments
    return STATISTICS if is_writing else frozenset()


def is_collective(op: str) -> bool:
    """Whether an operator fills tensors with what a process group sends."""
    return op.startswith(OF_C10D) and op != SENDING


READING_TAGS: Final = frozenset(
    {torch.Tag.dynamic_output_shape, torch.Tag.data_dependent_output}
)
"""Of operators whose result, or its size, depends on data."""

ALIGNED: Final = "aten._nested_tensor_from_mask_left_aligned.default"
"""Says whether padding stands last in each row, and has no tag for that."""

FOREACH: Final = "aten._foreach_"

SLOW_TAGS: Final = READING_TAGS | {torch.Tag.inplace_view}

INDEX: Final = "aten.index.Tensor"
TRUTHS: Final = frozenset({torch.bool, torch.uint8})
"""Dtypes of masks, whose values say how much an index takes; those of positions do not,
though the tags are for both."""

BY_GRADIENT: Final = frozenset({"aten.mkldnn_rnn_layer.default"})
"""Operators that return more where gradients are wanted, which no key says."""

BY_STORAGE: Final = frozenset({"aten.as_strided.default"})
"""Views that may end past their storage on meta; no key says how large that is."""

OF_TORCH: Final = ("aten.", "prims.", "higher_order.")
"""How the names of torch's own operators begin."""

COMPOSITE: Final = "CompositeImplicitAutograd"
RANDOM: Final = torch.Tag.nondeterministic_seeded

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
    VIEW_MANY = 4
    IN_PLACE = 5
    PURE_WIDE = 6


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
        kind: How its calls are answered, a :class:`Kind`.
        rebuild: What ``PURE_MANY`` and ``IN_PLACE`` need to build the return value; the
            bytes of the storage of a ``PURE_WIDE``, more than it needs; the operator
            that makes a ``VIEW_MANY``, or a ``VIEW`` where ``as_strided`` will not do.
        is_random: Whether it would draw from a generator.
        is_on_real: Whether its calls take one real tensor, and make none: they are run,
            but nothing of what comes of it is new.
        is_unasked: Whether nobody knows if the CPU refuses its calls.
        allowed: What the values may be of what is read, where an operator refuses
            others.
        changes: What its rows make and write, once somebody asked.
        drawn_on: Device other than the CPU whose generator that would be, as planned.
        variants: Entries of the same call whose outputs came out otherwise.
    """

    __slots__ = (
        "allowed",
        "changes",
        "drawn_on",
        "is_on_real",
        "is_random",
        "is_unasked",
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
        self.kind = kind
        self.rebuild = rebuild
        self.is_random = False
        self.is_on_real = False
        self.is_unasked = False
        self.allowed = find_allowed(signature)
        self.changes: Any = None
        self.drawn_on: torch.device | None = None
        self.variants: dict[tuple[LiveGeometry, ...], Entry] = {}


class OpTable:
    """What the schema of one operator says, and the entries of its calls so far.

    Its ``entries`` are found by the keys of calls; those ``alike`` by what
    :func:`~meta_magic.recording.signatures.cache.generalize` makes of these.
    """

    def __init__(self, func: Any) -> None:
        schema = find_schema(func)
        arguments = () if schema is None else tuple(schema.arguments)
        returned = () if schema is None else tuple(schema.returns)
        has_aliases = any(a.alias_info for a in (*arguments, *returned))
        self.name = f"higher_order.{func}" if schema is None else str(func)
        self.func = func
        self.arguments = tuple(a.name for a in arguments)
        undeclared = find_always_written(self.name, self.arguments)
        self.written = undeclared.union(
            a.name for a in arguments if a.alias_info and a.alias_info.is_write
        )
        self.has_out = any(
            a.kwarg_only and a.alias_info and a.alias_info.is_write for a in arguments
        )
        # Each tensor is then written by an operator of its own, which counts it.
        self.counts_writes = bool(self.written) and self.name.startswith(FOREACH)
        self.is_loose = self.name in BY_STORAGE
        self.allows_fast_path = (
            schema is not None
            and not SLOW_TAGS.intersection(func.tags)
            and self.name not in BY_GRADIENT
            and not self.is_loose
        )
        is_tagged = schema is not None and not READING_TAGS.isdisjoint(func.tags)
        self.reads_data = is_tagged or self.name == ALIGNED
        self.is_foreign = not self.name.startswith(OF_TORCH)
        self.is_random = schema is not None and RANDOM in func.tags
        # Its own method would count decompositions that torch.compile alone uses.
        self.is_composite = (
            isinstance(func, OpOverload)
            and has_kernel(func.name(), COMPOSITE)
            and not has_kernel(func.name(), "CPU")
        )
        self.is_pure = not (has_aliases or undeclared)
        self.makes_new = any(r.alias_info is None for r in returned)
        self.is_elementwise = self.allows_fast_path and is_elementwise(func, arguments)
        self.has_alike = bool(self.written) or self.is_elementwise
        self.entries: dict[tuple[object, ...], Entry] = {}
        self.alike: dict[object, Entry] = {}

    def has_fast_path(self, call: LiveCall) -> bool:
        """Whether later calls that are like one may be answered without the kernel."""
        indices = call.inputs[1:] if self.name == INDEX else ()
        are_positions = bool(indices) and TRUTHS.isdisjoint(t.dtype for t, _ in indices)
        return self.allows_fast_path or are_positions

    def draws(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
        """Whether a call would draw: attention and dropout may have theirs off."""
        if not self.is_random:
            return False
        given = {**dict(zip(self.arguments, args, strict=False)), **kwargs}
        is_off = "dropout_p" in self.arguments and not given.get("dropout_p")
        return not is_off and given.get("train") is not False


def is_elementwise(func: Any, arguments: Sequence[Any]) -> bool:
    """Whether an operator goes from element to element, and takes mere numbers.

    Those that it calls floats are more: probabilities, which have limits.
    """
    is_plain = torch.Tag.pointwise in func.tags or str(func).startswith(FOREACH)
    takes_floats = any("float" in str(argument.type) for argument in arguments)
    return is_plain and RANDOM not in func.tags and not takes_floats


def plain_float(value: Any) -> object:
    """Return what stands for a float or complex number in a key.

    Negative zero equals zero and nan equals nothing: told apart by their text, and nan
    by its sign, which no text has.
    """
    kind = type(value)
    if kind is float and value:
        if value == value:  # noqa: PLR0124  but for nan
            return (kind, value)
        return (kind, copysign(1, value), repr(value))
    return (kind, repr(value))


def sharing_of(inputs: Sequence[tuple[Tensor, Seen]]) -> tuple[object, ...]:
    """Return which strided arguments are the same or share a storage."""
    return sharing(
        [
            tensor
            for tensor, (_, storage, geometry) in inputs
            if storage is not None and geometry.record.stride is not None
        ]
    )


def sharing(tensors: Sequence[Tensor]) -> tuple[object, ...]:
    """Return which tensors are the same or share a storage; () if none do."""
    storages = [id(tensor.untyped_storage()) for tensor in tensors]
    if len(set(storages)) == len(storages):
        return ()
    ids = list(map(id, tensors))
    return tuple(map(ids.index, ids)), tuple(map(storages.index, storages))
