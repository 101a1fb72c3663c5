"""What a forward replay does with the calls of one signature, decided once for all.

A loop makes 200,000 calls of ten signatures: deciding for each call which operator it
names, and what that reads, would take longer than the calls. Read
:func:`make_small_call` first.
"""

from collections.abc import Sequence
from enum import IntEnum
from itertools import takewhile
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor, UntypedStorage

from meta_magic.errors import ReplayError
from meta_magic.replaying.call_runner import allocate, make_view
from meta_magic.replaying.operators import N_TRAINED, Usage
from meta_magic.replaying.special_operators import make_operator
from meta_magic.torch_private.dispatcher import kernel_of, schema_of
from meta_magic.torch_private.tensor_internals import address_of_storage
from meta_magic.trace.program import HEADER
from meta_magic.trace.signature import (
    Geometry,
    OpaqueArgument,
    Signature,
    TensorArgument,
    span_nbytes,
)

CPU: Final = torch.device("cpu")

LARGE_NBYTES: Final = 2**20
LARGE_WORK: Final = 2**24
"""A call that changes more bytes, or takes more operations, is large: it is checked
against the limits."""

MAX_VIEWS: Final = 2**12
"""Cached tensors on one storage, such as the elements of a table."""


VIEWS_IN_PLACE: Final = frozenset(
    f"aten.{name}"
    for name in (
        *("as_strided_.default", "detach_.default", "squeeze_.default"),
        *("squeeze_.dim", "squeeze_.dims", "swapaxes_.default", "swapdims_.default"),
        *("t_.default", "transpose_.default", "unsqueeze_.default"),
    )
)
"""Operators that change only the metadata of a tensor, not its storage."""


class CallKind(IntEnum):
    """What a forward replay does with the calls of a signature."""

    PASS = 0
    """Skip them: they make views, or read a value for the cell."""
    RUN = 1
    """Run them."""
    ALLOCATE = 2
    """Allocate their outputs: these are uninitialized."""
    FORGET = 3
    """Do not run them, and drop the storages that they make or write."""
    REAL = 4
    """Drop what they write: real tensors, which no small call reads."""


class Held:
    """A real storage of a forward replay."""

    __slots__ = ("is_blank", "nbytes", "real", "tensors")

    def __init__(self, real: UntypedStorage, *, is_blank: bool = False) -> None:
        self.real = real
        self.nbytes = real.nbytes()
        self.is_blank = is_blank
        self.tensors: dict[int, Tensor] = {}

    def view(self, shape: "Shape") -> Tensor:
        """Return a tensor on the storage."""
        if shape.nbytes > self.nbytes:
            raise ReplayError("a tensor is larger than its storage was so far")
        if len(self.tensors) == MAX_VIEWS:
            self.tensors.clear()
        tensor = self.tensors[shape.number] = make_view(self.real, shape.geometry)
        return tensor


class Shape(NamedTuple):
    """A geometry, its number, and the bytes that it spans."""

    number: int
    geometry: Geometry
    nbytes: int


class SmallCall:
    """What a forward replay does with the calls of one signature.

    Attributes:
        made: Index and shape of each output with a new storage.
        n_needed: How many tensors the quick way needs; one more than there are, which
            switches it off, for calls that draw or are not run.
        changed: Indices, among all tensors of a row, of new and written storages.
        is_copy_of_itself: Whether it copies between tensors of the same geometry.
        is_large: Whether it is checked against the limits.
        usage: How the operator uses its tensors; None unless the calls are run.
    """

    def __init__(self, signature: Signature, numbers: dict[Geometry, int]) -> None:
        def shape_of(geometry: Geometry) -> Shape:
            number = numbers.setdefault(geometry, len(numbers))
            return Shape(number, geometry, span_nbytes(geometry))

        n_inputs = len(signature.inputs)
        made = [i for i, viewed in enumerate(signature.views) if viewed is None]
        self.op = signature.op
        self.width = HEADER + n_inputs + len(signature.outputs)
        self.inputs = tuple(map(shape_of, signature.inputs))
        self.made = tuple((i, shape_of(signature.outputs[i])) for i in made)
        self.writes = signature.writes
        self.changed = (*signature.writes, *(n_inputs + i for i in made))
        self.kind = CallKind.FORGET
        self.is_random = self.is_large = False
        self.n_needed = n_inputs + 1
        self.work = self.nbytes = 0
        self._is_known = False
        self._function: Any = None
        self._positional: tuple[Any, ...] = ()
        self._named: dict[str, Any] = {}
        self.usage: Usage | None = None
        self.is_copy_of_itself = (
            signature.op == "aten.copy_.default"
            and self.inputs[0].number == self.inputs[1].number
        )

    def prepare(self, usage: Usage) -> None:
        """Prepare to run the calls, without dispatch by arguments if possible."""
        operator, given = usage.operator, usage.signature.arguments
        self.usage, self.is_random = usage, operator.is_random
        self.kind = CallKind.ALLOCATE if operator.is_empty else CallKind.RUN
        self.work = usage.work
        changed = (*self.inputs, *(shape for _, shape in self.made))
        most = max((shape.nbytes for shape in changed), default=0)
        self.nbytes = sum(shape.nbytes for _, shape in self.made)
        self.is_large = most > LARGE_NBYTES or self.work > LARGE_WORK
        n_tensors = len(self.inputs)
        if self.kind == CallKind.RUN and not self.is_random:
            self.n_needed = n_tensors
        tensors = [TensorArgument(i) for i in range(n_tensors)]
        is_first = [value for _, value in given[:n_tensors]] == tensors
        rest = [value for _, value in given[n_tensors:]]
        if (
            operator.function is not None
            and operator.name not in N_TRAINED
            and usage.arguments.default_dtype is None
            and not operator.is_random
            and is_first
            and all(map(is_number, rest))
        ):
            n_positional = count_positional(operator.function, given)
            if n_positional >= n_tensors:
                positional = [value for _, value in given[n_tensors:n_positional]]
                self._function = kernel_of(operator.function)
                self._positional = tuple(map(as_list, positional))
                self._named = {name: as_list(v) for name, v in given[n_positional:]}

    def run(self, tensors: Sequence[Tensor], generator: torch.Generator | None) -> Any:
        """Call the operator."""
        if self._function is not None:
            return self._function(*tensors, *self._positional, **self._named)
        usage: Any = self.usage
        return usage.operator.call(usage.arguments, tensors, CPU, generator)

    def fills(self, position: int, nbytes: int) -> bool:
        """Whether overwriting an argument overwrites its whole storage."""
        usage: Any = self.usage
        return position in usage.overwritten and bool(usage.fills(position, nbytes))

    def keep(
        self, tensor: Tensor, shape: Shape, inputs: Sequence[Tensor]
    ) -> Tensor | None:
        """Return an output with its recorded metadata, on a storage of its own."""
        geometry = shape.geometry
        if tensor.shape != geometry.shape or tensor.dtype is not geometry.dtype:
            return None
        if self._is_known:
            return tensor
        real = tensor.untyped_storage()
        address = address_of_storage(real)
        is_own = all(address_of_storage(t.untyped_storage()) != address for t in inputs)
        if (
            is_own
            and tensor.stride() == geometry.stride
            and tensor.storage_offset() == geometry.storage_offset
            and real.nbytes() == shape.nbytes
            and not tensor.is_conj()
            and not tensor.is_neg()
        ):
            # Another call of the signature has the same strides.
            self._is_known = len(self.made) == 1
            return tensor
        copied = make_view(allocate(shape.nbytes, CPU), geometry)
        once = tuple(slice(None if step else 1) for step in geometry.stride or ())
        copied[once].copy_(tensor[once])
        return copied


def make_small_call(signature: Signature, numbers: dict[Geometry, int]) -> SmallCall:
    """Decide what is done with the calls of a signature; number its geometries."""
    call = SmallCall(signature, numbers)
    op = signature.op
    made = [signature.outputs[i] for i, _ in call.made]
    if call.width == HEADER or op in VIEWS_IN_PLACE:  # no tensors: the profiler's
        call.kind = CallKind.PASS
    elif not op.startswith("aten."):  # a custom schema may hide writes
        call.changed = tuple(range(call.width - HEADER))
    else:
        made += [signature.inputs[i] for i in signature.writes]
        if not made:  # a view, or a value that the cell reads
            call.kind = CallKind.PASS
        elif signature.writes and all(g.device.type != "meta" for g in made):
            call.kind = CallKind.REAL
        elif all(map(is_plain, (*signature.inputs, *signature.outputs))):
            usage = find_usage(signature)
            if usage is not None:
                call.prepare(usage)
    return call


def find_usage(signature: Signature) -> Usage | None:
    """Return how an operator uses its tensors; None if it cannot be run forward."""
    try:
        usage = Usage(signature, make_operator(signature))
    except ReplayError:
        return None
    operator = usage.operator
    is_other = operator.lays_out_anew and not keeps_layout(signature)
    return None if is_other or operator.is_setting else usage


def keeps_layout(signature: Signature) -> bool:
    """Whether a call returns all that it writes, as it was: no ``out=`` grew."""
    return tuple(signature.inputs[i] for i in signature.writes) == signature.outputs


def is_plain(geometry: Geometry) -> bool:
    """Whether a tensor is strided, on meta or the CPU, without lazy conjugation."""
    return (
        geometry.device.type in {"meta", "cpu"}
        and geometry.layout is torch.strided
        and geometry.stride is not None
        and not (geometry.is_conj or geometry.is_neg)
    )


def is_number(value: object) -> bool:
    """Whether an argument is a plain value, or a list of numbers."""
    if isinstance(value, tuple):
        return all(type(item) in (int, float, bool) for item in value)
    return not isinstance(value, (TensorArgument, OpaqueArgument, torch.device))


def as_list(value: object) -> object:
    """Return an argument with its tuples as lists, as operators take it."""
    return [*value] if isinstance(value, tuple) else value


def count_positional(function: Any, given: Sequence[tuple[str, object]]) -> int:
    """Return how many of the given arguments can be passed by position."""
    names = [a.name for a in schema_of(function).arguments if not a.kwarg_only]
    pairs = zip(given, names, strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0][0] == pair[1], pairs))
