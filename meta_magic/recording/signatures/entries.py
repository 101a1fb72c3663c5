"""Records of the operator cache: one call, one signature, one operator.

An ``OpTable`` holds what the schema of one operator says, and an ``Entry`` for each
signature of its calls so far. Read ``Entry`` first.

Some operators write arguments although their schema denies it, as
``dist.all_gather_into_tensor(y, x)``: ``find_always_written`` knows them, and
``tests/conformance/test_undeclared_writes.py`` goes through all operators of torch.

``weight[torch.tensor([99])]`` of ten rows is refused by the CPU: ``ROWS`` says which
operands hold positions, classes or probabilities, and ``find_allowed`` their bounds.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import IntEnum
from itertools import chain
from math import copysign, inf, prod
from types import EllipsisType, NoneType
from typing import Any, Final, NamedTuple, TypeAlias

import torch
from torch import Tensor

from meta_magic.recording.identities.tensors import LiveGeometry, Seen, tensors_in
from meta_magic.torch_private.dispatcher import OpOverload, find_schema, has_kernel
from meta_magic.torch_private.distributed import uses_group
from meta_magic.trace.signature import Argument, Signature, TensorArgument


class Allowed(NamedTuple):
    """The values that one operand may have; the operator refuses others.

    Attributes:
        spared: One more allowed value, such as ``ignore_index``; None if there is none.
        is_count: Whether the bounds are for the number of true elements.
        is_first: Whether the bounds are for the first element only.
    """

    position: int
    name: str
    low: float
    high: float
    spared: int | None = None
    is_count: bool = False
    is_first: bool = False

    def has(self, low: float, high: float) -> bool:
        """Whether all values between two bounds, or the ``spared`` one, are allowed."""
        if self.is_first:
            return low <= self.high and self.low <= high
        is_low = self.low <= low or low == self.spared
        return is_low and (high <= self.high or high == self.spared)


class Operands:
    """The arguments of a signature, by their names in the schema."""

    def __init__(self, signature: Signature) -> None:
        self._inputs = signature.inputs
        self._given = dict(signature.arguments)

    def find(self, name: str, default: Any = None) -> Any:
        """Return an argument, or its default."""
        return self._given.get(name, default)

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of a tensor; ``(1,)`` for a tensor without dimensions."""
        return self._inputs[self._given[name].index].shape or (1,)  # type: ignore[attr-defined]  # a tensor's

    def allow(
        self, name: str, high: float, low: float = 0, spared: int | None = None
    ) -> Iterator[Allowed]:
        """Yield the bounds of an operand, if it is given."""
        operand = self._given.get(name)
        if isinstance(operand, TensorArgument):
            yield Allowed(operand.index, name, low, high, spared)

    def allow_back(self, name: str, n: int) -> Iterator[Allowed]:
        """Yield the bounds of positions among ``n``, negative ones among them."""
        return self.allow(name, n - 1, low=-n)

    def find_positions(self) -> Iterator[Allowed]:
        """Yield the bounds of ``indices``, one tensor for each dimension."""
        shape, at = self.shape("self"), 0
        for part in self.find("indices", ()):
            geometry = self._inputs[part.index] if part is not None else None
            if geometry is not None and geometry.dtype in MASKS:
                at += len(geometry.shape)
                continue
            if geometry is not None and at < len(shape):
                n = shape[at]
                yield Allowed(part.index, f"indices[{at}]", -n, n - 1)
            at += 1

    def find_count(self) -> Iterator[Allowed]:
        """Yield the number of true elements of a mask that ``values`` must have."""
        parts = self.find("indices", ())
        at = [i for i, part in enumerate(parts) if part is not None]
        mask = self._inputs[parts[at[0]].index] if len(at) == 1 else None
        if mask is None or mask.dtype not in MASKS:
            return
        n_after = len(self.shape("self")) - len(mask.shape) - at[0]
        *_, n = (1, *self.shape("values")[: -n_after or None])
        if n != 1:
            yield Allowed(parts[at[0]].index, "indices", n, n, is_count=True)


Rule = Callable[[Operands], Iterator[Allowed]]


def n_along(given: Operands) -> int:
    """Return the size of the dimension along which positions are."""
    return int(given.shape("self")[given.find("dim", 0)])


def among_rows(given: Operands) -> Iterator[Allowed]:
    """Bound the rows of an embedding, and the offsets of its bags."""
    rows = given.allow("indices", given.shape("weight")[0] - 1)
    if given.find("offsets") is None:
        return rows
    ends = given.allow("offsets", prod(given.shape("indices")))
    first = (a._replace(is_first=True) for a in given.allow("offsets", 0))
    return chain(rows, ends, first)


def among_classes(given: Operands) -> Iterator[Allowed]:
    """Bound classes; ``ignore_index`` is allowed as well."""
    n_classes = (*given.shape("self")[:2],)[-1]
    spared = given.find("ignore_index", -100)
    return given.allow("target", n_classes - 1, spared=spared)


def of_true_ones(given: Operands) -> Iterator[Allowed]:
    """Bound the number of true elements of a mask."""
    n_each = prod(given.shape("self")) // max(1, prod(given.shape("mask")))
    most = prod(given.shape("source")) // max(1, n_each)
    return (a._replace(is_count=True) for a in given.allow("mask", most))


ROWS: Final[tuple[tuple[str, Rule], ...]] = (
    # Positions along a dimension; negative ones are refused, or count from its end.
    (
        (
            "gather scatter scatter_add scatter_reduce "
            "index_select index_add index_copy index_reduce"
        ),
        lambda given: given.allow("index", n_along(given) - 1),
    ),
    ("index_fill", lambda given: given.allow_back("index", n_along(given))),
    # Positions among all elements, rows, or the elements of a plane of the output.
    ("take put", lambda given: given.allow_back("index", prod(given.shape("self")))),
    (
        "embedding_renorm",
        lambda given: given.allow_back("indices", given.shape("self")[0]),
    ),
    ("embedding embedding_bag embedding_bag_forward_only", among_rows),
    (
        "max_unpool2d max_unpool3d",
        lambda given: given.allow("indices", prod(given.find("output_size", ())) - 1),
    ),
    ("index unsafe_index", Operands.find_positions),
    (
        "index_put index_put_impl unsafe_index_put",
        lambda given: chain(given.find_positions(), given.find_count()),
    ),
    ("nll_loss_forward nll_loss2d_forward", among_classes),
    (
        "multi_margin_loss",
        lambda given: given.allow("target", given.shape("self")[-1] - 1),
    ),
    (
        "multilabel_margin_loss_forward",  # a list of classes ends with -1
        lambda given: given.allow("target", given.shape("self")[-1] - 1, low=-1),
    ),
    ("multinomial poisson", lambda given: given.allow("self", inf)),
    (
        "bernoulli",
        lambda given: given.allow("self" if given.find("p") is None else "p", 1),
    ),
    (
        "binary_cross_entropy",
        lambda given: chain(given.allow("self", 1), given.allow("target", 1)),
    ),
    ("normal", lambda given: given.allow("std", inf)),
    ("masked_scatter", of_true_ones),
    # The status of LAPACK: 0 says that no matrix is singular.
    ("linalg_check_errors", lambda given: given.allow("info", 0)),
)
RULES: Final = {name: rule for names, rule in ROWS for name in names.split()}
"""By the operator's name without its overload and outer underscores.

Source:
    Errors of torch 2.13 on the CPU, which ``tests/unit/recording/signatures`` raise.
"""


def find_allowed(signature: Signature) -> tuple[Allowed, ...]:
    """Return the bounds of the operands of a signature."""
    library, name, *_ = signature.op.split(".")
    rule = RULES.get(name.strip("_")) if library == "aten" else None
    return () if rule is None else tuple(rule(Operands(signature)))


Args: TypeAlias = Sequence[Any]  # positional arguments of a call of torch

Kwargs: TypeAlias = Mapping[str, Any]  # keyword arguments of a call of torch

Inputs: TypeAlias = Sequence[tuple[Tensor, Seen]]
"""The tensors among the arguments, with their identities before the call."""

READING_TAGS: Final = frozenset(
    {torch.Tag.dynamic_output_shape, torch.Tag.data_dependent_output}
)
"""Tags of operators whose result, or its size, depends on data."""

SLOW_TAGS: Final = READING_TAGS | {torch.Tag.inplace_view}

ALIGNED: Final = "aten._nested_tensor_from_mask_left_aligned.default"
"""Returns whether padding is last in each row; it reads data, but has no tag."""

FOREACH: Final = "aten._foreach_"

INDEX: Final = "aten.index.Tensor"
MASKS: Final = frozenset({torch.bool, torch.uint8})
"""Dtypes of masks: their values decide the size of a result. Integer indices do not,
but torch tags ``INDEX`` as if they did."""

BY_GRADIENT: Final = frozenset({"aten.mkldnn_rnn_layer.default"})
"""Operators that return more if gradients are wanted, which no key contains."""

BY_STORAGE: Final = frozenset({"aten.as_strided.default"})
"""Views that may end past their storage on meta: no key contains the storage's size."""

OF_TORCH: Final = ("aten.", "prims.", "higher_order.")
"""Prefixes of torch's own operators."""

COMPOSITE: Final = "CompositeImplicitAutograd"
RANDOM: Final = torch.Tag.nondeterministic_seeded

PLAIN: Final = frozenset(
    {int, float, bool, complex, str, NoneType, EllipsisType}
    | {torch.dtype, torch.device, torch.layout, torch.memory_format}
)
"""Types of arguments that are a part of a key as they are."""


class Given(NamedTuple):
    """The arguments of one operator call."""

    args: Args
    kwargs: Kwargs
    inputs: Inputs


class LiveCall(NamedTuple):
    """One call that ran; the identities of ``inputs`` are those before it."""

    args: Sequence[object]
    kwargs: Mapping[str, object]
    returned: object
    inputs: Inputs
    outputs: Inputs


class Kind(IntEnum):
    """How a cache hit returns its result: by the kernel, or by a fast path."""

    RUN = 0
    PURE = 1
    PURE_MANY = 2
    VIEW = 3
    VIEW_MANY = 4
    IN_PLACE = 5
    PURE_WIDE = 6


class Entry:
    """A signature while recording.

    Attributes:
        kind: How a cache hit returns its result, a :class:`Kind`.
        rebuild: By kind. ``PURE_MANY`` and ``IN_PLACE``: how to build the return value;
            ``PURE_WIDE``: the bytes of the storage, more than the tensor needs;
            ``VIEW_MANY``, and a ``VIEW`` that ``as_strided`` cannot make: the operator.
        is_on_real: Whether a call takes one real tensor and makes no new tensor. The
            kernel runs, but its results need no new identities.
        allowed: The values that operands may have; the operator refuses others.
        changes: What a row of this signature makes and writes; None until needed.
        drawn_on: Planned device of the generator, if it is not the CPU.
        variants: Entries of calls with the same key whose outputs differ.
    """

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
        self.allowed = find_allowed(signature)
        self.changes: Any = None
        self.drawn_on: torch.device | None = None
        self.variants: dict[tuple[LiveGeometry, ...], Entry] = {}


class OpTable:
    """What the schema of one operator says, and the entries of its calls so far.

    Attributes:
        written: The arguments that each call writes.
        counts_writes: Whether each tensor is written by an operator of its own, which
            counts the write.
        may_overrun: Whether it makes views that may end past their storage on meta.
        allows_fast_path: Whether its schema and tags allow a fast path.
        is_foreign: Whether it is no operator of torch.
        is_composite: Whether the CPU has no kernel for it, and runs other operators.
        is_pure: Whether it returns no alias and writes nothing.
        makes_new: Whether some result is no alias of an argument.
        is_elementwise: Whether no number among its arguments decides metadata.
        has_alike: Whether its calls have a second key, if the first one is unknown.
        alike: Entries by the generalized keys of calls.
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
        writes = [a for a in arguments if a.alias_info and a.alias_info.is_write]
        self.written = undeclared.union(a.name for a in writes)
        self.has_out = any(a.kwarg_only for a in writes)
        self.counts_writes = bool(self.written) and self.name.startswith(FOREACH)
        self.may_overrun = self.name in BY_STORAGE
        self.allows_fast_path = (
            schema is not None
            and not SLOW_TAGS.intersection(func.tags)
            and self.name not in BY_GRADIENT
            and not uses_group(self.name)  # ranks hand each other values
            and not self.may_overrun
        )
        is_tagged = schema is not None and not READING_TAGS.isdisjoint(func.tags)
        self.reads_data = is_tagged or self.name == ALIGNED
        self.is_foreign = not self.name.startswith(OF_TORCH)
        self.is_random = schema is not None and RANDOM in func.tags
        # A method of ``func`` says this, too, but counts kernels that only
        # torch.compile uses.
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
        """Whether later calls with the signature of ``call`` may need no kernel."""
        indices = call.inputs[1:] if self.name == INDEX else ()
        are_positions = bool(indices) and MASKS.isdisjoint(t.dtype for t, _ in indices)
        return self.allows_fast_path or are_positions

    def find_written(self, given: Given) -> list[Tensor]:
        """Return the tensors that a call writes."""
        values = dict(zip(self.arguments, given.args, strict=False)) | {**given.kwargs}
        return tensors_in([v for name, v in values.items() if name in self.written])

    def draws(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
        """Whether a call draws: attention and dropout may have dropout switched off."""
        if not self.is_random:
            return False
        given = {**dict(zip(self.arguments, args, strict=False)), **kwargs}
        is_off = "dropout_p" in self.arguments and not given.get("dropout_p")
        return not is_off and given.get("train") is not False


def is_elementwise(func: Any, arguments: Sequence[Any]) -> bool:
    """Whether an operator computes element by element, and takes any number.

    Arguments that the schema calls ``float`` are probabilities, which have limits.
    """
    is_plain = torch.Tag.pointwise in func.tags or str(func).startswith(FOREACH)
    takes_floats = any("float" in str(argument.type) for argument in arguments)
    return is_plain and RANDOM not in func.tags and not takes_floats


def plain_float(value: Any) -> object:
    """Return the part of a key for a float or complex number.

    In Python -0.0 equals 0.0, and nan equals nothing. The text distinguishes these; two
    nans differ by their sign, which the text does not show.
    """
    kind = type(value)
    if kind is float and value:
        if value == value:  # noqa: PLR0124  no nan
            return (kind, value)
        return (kind, copysign(1, value), repr(value))
    return (kind, repr(value))


def sharing_of(numbers: Sequence[int], storages: Sequence[int]) -> tuple[object, ...]:
    """Return which tensors are the same or share a storage; () if none do."""
    if len(set(storages)) == len(storages):
        return ()
    return tuple(map(numbers.index, numbers)), tuple(map(storages.index, storages))


def sharing_of_inputs(inputs: Inputs) -> tuple[object, ...]:
    """Return which strided arguments are the same or share a storage; () if none do."""
    tensors = [
        tensor
        for tensor, (_, storage, geometry) in inputs
        if storage is not None and geometry.record.stride is not None
    ]
    storages = [id(tensor.untyped_storage()) for tensor in tensors]
    return sharing_of([*map(id, tensors)], storages)


# Writes that a schema does not declare

OF_C10D: Final = "c10d."
SENDING: Final = "c10d.send.default"
RECEIVING: Final = frozenset({"c10d.recv_.default", "c10d.recv_any_source_.default"})
REDUCED: Final = "tensors"  # name of the argument that a collective reads and writes

OTHERS: Final[Mapping[str, frozenset[str]]] = {
    "fsdp.all_gather_copy_in.default": frozenset({"all_gather_output"})
}

STATISTICS: Final = frozenset({"running_mean", "running_var"})
WRITING_STATISTICS: Final = frozenset(
    f"aten.{name}.{variant}"
    for variant in ("default", "out")
    for name in (
        *("native_batch_norm", "cudnn_batch_norm", "miopen_batch_norm"),
        *("batch_norm_update_stats", "batch_norm_gather_stats"),
        "batch_norm_gather_stats_with_counts",
    )
)
"""Operators that write the statistics, unless ``training`` is false."""


def find_always_written(op: str, names: Sequence[str]) -> frozenset[str]:
    """Return the arguments that each call of an operator writes undeclared."""
    reduced = {REDUCED} & {*names} if is_collective(op) else set()
    return OTHERS.get(op, frozenset()) | find_overwritten(op, names) | reduced


def find_overwritten(op: str, names: Sequence[str]) -> frozenset[str]:
    """Return the arguments that a collective writes in full and does not read.

    Source: ``FakeProcessGroup.hpp`` and ``ProcessGroupGloo.cpp`` of torch 2.13: each
    output is copied to, also by the group that sends nothing.
    """
    if op in RECEIVING:
        return frozenset({REDUCED})
    outputs = (name for name in names if name.startswith("output"))
    return frozenset(outputs if is_collective(op) else ())


def find_written_statistics(
    op: str, arguments: Iterable[tuple[str, Argument]]
) -> frozenset[str]:
    """Return the arguments that a call of a batch norm writes undeclared."""
    is_writing = op in WRITING_STATISTICS and ("training", False) not in arguments
    return STATISTICS if is_writing else frozenset()


def is_collective(op: str) -> bool:
    """Whether an operator fills tensors with data of a process group."""
    return op.startswith(OF_C10D) and op != SENDING
