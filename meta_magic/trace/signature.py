"""What equal operator calls share: metadata, arguments, and call sites.

A program stores each of these records once. Read :class:`Signature` first.
:class:`Operands` are the arguments of one by name, as formulas of FLOPs read them:
shapes, not tensors.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from pathlib import PurePath
from typing import Any, Final, Literal, TypeAlias

import torch

from meta_magic.trace.notes import name_cell

CPU: Final = torch.device("cpu")
META: Final = torch.device("meta")
Phase: TypeAlias = Literal["init", "forward", "backward", "optimizer", "other"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Geometry:
    """The metadata that tensors share when nothing but their identity differs.

    Attributes that are not listed are as in :class:`TensorMetadata`.

    Attributes:
        placement: Device that the code names for it; None where it names none.
        values_shape: Sizes of the elements that a sparse tensor specifies; or None.
        is_coalesced: Whether a tensor of coordinates specifies each position once.
    """

    shape: tuple[int, ...]
    stride: tuple[int, ...] | None
    storage_offset: int | None
    dtype: torch.dtype
    device: torch.device
    layout: torch.layout
    is_conj: bool = False
    is_neg: bool = False
    placement: torch.device | None = None
    values_shape: tuple[int, ...] | None = None
    is_coalesced: bool = False


def span_nbytes(geometry: Geometry) -> int:
    """Return the bytes from the start of a storage to the end of a tensor in it."""
    if geometry.values_shape is not None:
        return prod(geometry.values_shape) * geometry.dtype.itemsize
    if geometry.stride is None or geometry.storage_offset is None:
        return prod(geometry.shape) * geometry.dtype.itemsize
    if 0 in geometry.shape:
        return 0
    last = sum(
        (n - 1) * step for n, step in zip(geometry.shape, geometry.stride, strict=True)
    )
    return (geometry.storage_offset + last + 1) * geometry.dtype.itemsize


@dataclass(frozen=True, slots=True)
class TensorArgument:
    """The tensor at ``index`` of a call's inputs (or outputs)."""

    index: int


@dataclass(frozen=True, slots=True)
class OpaqueArgument:
    """An argument that is no plain value, such as a ``torch.Generator``, as text."""

    text: str


NAN: Final = OpaqueArgument("float nan")
NEGATIVE_NAN: Final = OpaqueArgument("float -nan")
"""Values for nan, as nan itself is not equal to itself."""

Argument: TypeAlias = object
"""A plain value, a :class:`TensorArgument`, an :class:`OpaqueArgument`, or a tuple."""


@dataclass(frozen=True, slots=True, weakref_slot=True, kw_only=True)
class Signature:
    """All that calls of one operator on the same metadata have in common.

    Attributes:
        op: Qualified name with its overload, such as ``aten.addmm.default``.
        arguments: (name, value) pairs in schema order, tensors as
            :class:`TensorArgument`; arguments left at their default are absent.
        returns: What the operator returns, tensors as :class:`TensorArgument`.
        writes: Indices of the inputs that the operator writes.
        views: For each output, the index of the input whose storage it shares by the
            operator's schema, or None.
    """

    op: str
    arguments: tuple[tuple[str, Argument], ...]
    returns: Argument
    inputs: tuple[Geometry, ...]
    outputs: tuple[Geometry, ...]
    writes: tuple[int, ...]
    views: tuple[int | None, ...]

    @property
    def is_view(self) -> bool:
        """Whether all outputs share the storage of an input, and nothing is written."""
        return bool(self.views) and None not in self.views and not self.writes

    @property
    def accelerator(self) -> torch.device | None:
        """Device other than the CPU that the code names for an output or a write."""
        for made in (*self.outputs, *[self.inputs[i] for i in self.writes]):
            if made.placement is not None and made.placement.type != "cpu":
                return made.placement
        return None


Span: TypeAlias = tuple[int, int | None, int | None, int | None]
"""First line, first column in UTF-8 bytes, last line, column after the last."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourcePosition:
    """A span of source text, as tracebacks count it.

    Attributes:
        file: File name of the code; for a notebook cell the name IPython gave it.
        line: First line, from 1.
        end_line: Last line.
        column: First column, from 0, in UTF-8 bytes; None where Python kept none.
        end_column: Column after the last; None where Python kept none.
        function: Qualified name of the function that the code belongs to.

    Example:
        >>> with record() as trace:
        ...     x = torch.ones(3)
        >>> trace.ops[0].position.line
        2
    """

    file: str
    line: int
    end_line: int
    column: int | None
    end_column: int | None
    function: str

    @property
    def span(self) -> Span:
        """First line and column, last line, and the column after the last."""
        return self.line, self.column, self.end_line, self.end_column

    def __repr__(self) -> str:
        file = name_cell(self.file) or PurePath(self.file).name
        return f"{file}:{self.line} in {self.function}"


@dataclass(frozen=True, slots=True, kw_only=True)
class CallSite:
    """A call site, with the phase of the program.

    Attributes:
        function: Python-level torch call, such as ``torch.nn.functional.linear``;
            None for an operator that no such call made (the autograd engine).
        position: The innermost frame that is not torch's; None when there is none.
        line: Line of the cell; None when no frame of the cell was running.
    """

    function: str | None
    position: SourcePosition | None
    line: int | None
    phase: Phase


Shape: TypeAlias = tuple[int, ...]


class Operands:
    """The arguments of a signature by their names in the operator's schema."""

    __slots__ = ("_arguments", "signature")

    def __init__(self, signature: Signature) -> None:
        self.signature = signature
        self._arguments = dict(signature.arguments)

    def __contains__(self, name: str) -> bool:
        return self._arguments.get(name) is not None

    def value(self, name: str, default: Any = None) -> Any:
        """Return an argument; ``default`` if the call does not give it."""
        return self._arguments.get(name, default)

    def shape(self, *names: str) -> Shape:
        """Return the shape of the tensor argument with the first of some names."""
        for name in names:
            value = self._arguments.get(name)
            if isinstance(value, TensorArgument):
                return self.signature.inputs[value.index].shape
        raise LookupError(f"{self.signature.op} has no tensor {' or '.join(names)}")

    def shapes(self, name: str) -> list[Shape]:
        """Return the shapes of an argument that is a list of tensors, or a tensor."""
        value = self._arguments.get(name)
        items = value if isinstance(value, tuple) else (value,)
        inputs = self.signature.inputs
        return [inputs[i.index].shape for i in items if isinstance(i, TensorArgument)]

    @property
    def made(self) -> Shape:
        """Shape of the first output."""
        return self.signature.outputs[0].shape

    @property
    def largest(self) -> int:
        """Elements of the largest input or output."""
        tensors = (*self.signature.inputs, *self.signature.outputs)
        return max([prod(g.shape) for g in tensors], default=0)


Formula: TypeAlias = Callable[[Operands], int]
"""Returns the FLOPs of a call."""


def name_of(signature: Signature) -> str:
    """Return the name of an operator without its overload, such as ``aten.mm``."""
    namespace, _, rest = signature.op.partition(".")
    return f"{namespace}.{rest.partition('.')[0]}"


@lru_cache(maxsize=4096)
def short_name(op: str) -> str:
    """Return an operator's plain name: ``to_copy`` of ``aten._to_copy.default``."""
    return op.split(".")[1].removeprefix("_")


# What several parts of the package must know of operators. Names are short ones, but
# for those of COPIES.

EMPTY: Final = frozenset(
    {"empty", "empty_like", "empty_strided", "empty_permuted"}
    | {"new_empty", "new_empty_strided"}
)
"""Operators that return uninitialized memory."""

VIEWS_IN_PLACE: Final = frozenset(
    {"detach_", "t_", "transpose_", "squeeze_", "unsqueeze_", "as_strided_"}
    | {"swapaxes_", "swapdims_"}
)
"""Operators that change only the metadata of a tensor, not its storage."""

COPIES: Final = frozenset({"aten.clone.default", "aten._to_copy.default"})
"""Operators that return a copy of their tensor."""

SHAPE_ONLY: Final = frozenset(
    {"empty_like", "zeros_like", "ones_like", "full_like", "rand_like", "randn_like"}
    | {"randint_like", "new_empty", "new_empty_strided", "new_zeros", "new_ones"}
    | {"new_full"}
)
"""Operators that take only the metadata of a tensor."""


def name_all(names: str) -> tuple[str, ...]:
    """Return the names of torch's operators from a text without ``aten``."""
    return tuple(f"aten.{name}" for name in names.split())


def of_all(names: str, formula: Formula) -> dict[str, Formula]:
    """Return a table with one formula for several operators; see ``name_all``."""
    return dict.fromkeys(name_all(names), formula)


def shape_of(value: Argument, tensors: Sequence[Geometry]) -> Any:
    """Return an argument with shapes in place of tensors, also in lists."""
    if isinstance(value, TensorArgument):
        return tensors[value.index].shape
    if isinstance(value, tuple):
        return tuple(shape_of(item, tensors) for item in value)
    return value
