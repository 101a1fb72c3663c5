"""Values, and bounds of values, that a recording knows without a replay.

A training loop calls ``embedding(torch.randint(0, n, shape), table)`` in each step. The
signature of ``randint`` says that all its values fit; without this file, each step
would replay the draw to check them. Read :meth:`KnownValues.find_bounds` first.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from math import prod
from sys import maxsize
from types import MappingProxyType
from typing import Any, Final, TypeAlias

import torch
from torch import Tensor

from meta_magic.recording.rows.constants import read_constant
from meta_magic.recording.rows.written import Written
from meta_magic.torch_private.modes import DisableTorchDispatch, DisableTorchFunction
from meta_magic.trace.program import HEADER
from meta_magic.trace.signature import Geometry, Signature, TensorArgument

MAX_DEPTH: Final = 8
"""The most calls between an operand and the call that made its values."""

MAX_MEASURED: Final = 1024
"""How many constants, and parts of constants, have their bounds remembered."""

Bounds: TypeAlias = tuple[float, float]
"""The least and the greatest possible value."""


class KnownValues:
    """Knows constants, and bounds of integers, of the running recording."""

    def __init__(self, write: Written) -> None:
        self.row_by_storage: dict[int, int] = {}
        self._registry, self._rows = write.registry, write.rows
        self._constants = write.constants
        self._n_read = 0
        self._changes: list[tuple[int, Sequence[int]]] = []
        self._measured: dict[tuple[int, Geometry], Bounds] = {}

    def read_on(self) -> None:
        """Read the new rows; called before any question."""
        self._rows.flush()
        for entry in self._rows.entries[len(self._changes) :]:
            if entry.changes is None:
                entry.changes = find_changes(entry.signature)
            self._changes.append(entry.changes)
        changes, storages = self._changes, self._registry.storage_by_tensor
        start, at = self._n_read, 0
        new = self._rows.words.view()[start:].tolist()  # faster than word by word
        while at < len(new):
            width, changed = changes[new[at]]
            for position in changed:
                self.row_by_storage[storages[new[at + position]]] = start + at
            at += width
        self._n_read = start + at

    def find_constant(self, storage: int, geometry: Geometry) -> Tensor | None:
        """Return the values of a tensor from outside; None if it was written."""
        if storage in self.row_by_storage:
            return None
        constant = self._constants.find(storage)
        return None if constant is None else read_constant(constant, geometry)

    def find_bounds(
        self,
        storage: int,
        geometry: Geometry,
        before: int = maxsize,
        depth: int = MAX_DEPTH,
    ) -> Bounds | None:
        """Return the bounds of a tensor's values; None if only a replay finds them."""
        if geometry.dtype is torch.bool:
            return 0, 1
        row = self.row_by_storage.get(storage)
        if row is None:
            return self._measure(storage, geometry)
        words = self._rows.words.view()
        signature = self._rows.entries[words[row]].signature
        library, name, *_ = signature.op.split(".")
        rule = RULES.get(name.strip("_")) if library == "aten" else None
        if rule is None or row >= before or signature.writes or not depth:
            return None
        numbers = words[row + HEADER :]
        storages = self._registry.storage_by_tensor
        n_inputs = len(signature.inputs)
        made = [storages[n] for n in numbers[n_inputs:][: len(signature.outputs)]]
        output = made.index(storage)
        dtype = signature.outputs[output].dtype
        if dtype is not geometry.dtype:  # a view with another dtype
            return None

        def find_moved(index: int) -> Bounds | None:
            source = storages[numbers[index]]
            return self.find_bounds(source, signature.inputs[index], row, depth - 1)

        bounds = rule(signature, output, find_moved)
        limits = torch.iinfo(dtype)
        is_exact = bounds and limits.min <= bounds[0] <= bounds[1] <= limits.max
        return bounds if is_exact else None  # other conversions wrap

    def _measure(self, storage: int, geometry: Geometry) -> Bounds | None:
        """Return the least and the greatest value of a constant."""
        constant = self._constants.find(storage)
        if constant is None:
            return None
        key = storage, geometry
        if key not in self._measured:
            real = read_constant(constant, geometry)
            if real is None or not real.numel():
                return None
            if len(self._measured) > MAX_MEASURED:
                self._measured.clear()
            with DisableTorchFunction(), DisableTorchDispatch():
                try:
                    low, high = torch.aminmax(real)
                except NotImplementedError:  # of uint16 and complex numbers
                    return None
                self._measured[key] = low.item(), high.item()
        return self._measured[key]


FindMoved: TypeAlias = Callable[[int], Bounds | None]
"""Returns the bounds of an input of a call, by its position."""

Rule: TypeAlias = Callable[[Signature, int, FindMoved], Bounds | None]
"""Returns the bounds of one of the tensors that a call made."""


def find_drawn(signature: Signature, *_: object) -> Bounds | None:
    """Return the bounds of ``randint`` or ``randperm``."""
    given = dict(signature.arguments)
    low, high = given.get("low", 0), given.get("high", given.get("n"))
    return (low, high - 1) if type(low) is type(high) is int else None


def find_counted(signature: Signature, *_: object) -> Bounds | None:
    """Return the first and the last number of ``arange``."""
    given = dict(signature.arguments)
    start, step = given.get("start", 0), given.get("step", 1)
    if not type(start) is type(step) is int:
        return None
    last = start + (max(signature.outputs[0].shape[0], 1) - 1) * step
    return min(start, last), max(start, last)


def find_positions(signature: Signature, output: int, move: FindMoved) -> Bounds | None:
    """Return the bounds of positions along a dimension, or among all elements."""
    is_arg = signature.op.startswith("aten.arg")
    if not (output or is_arg or signature.op.startswith("aten.multinomial")):
        return find_moved(signature, output, move)  # the values at these positions
    shape, given = signature.inputs[0].shape, dict(signature.arguments)
    dim: Any = given.get("dim", None if is_arg else -1)
    n = prod(shape) if dim is None or not shape else shape[dim]
    return 0, max(n, 1) - 1


def find_moved(signature: Signature, _: int, move: FindMoved) -> Bounds | None:
    """Return the bounds of the values that a call moves, and of its fill value."""
    parts: list[Bounds | None] = [*list_moved(signature, move)]
    known = [part for part in parts if part is not None]
    if not known or len(known) < len(parts):
        return None
    return min(low for low, _ in known), max(high for _, high in known)


def list_moved(signature: Signature, move: FindMoved) -> Iterator[Bounds | None]:
    """Yield the bounds of each operand that a call moves, and of each number."""
    for name, value in signature.arguments:
        if name not in MOVED:
            continue
        for part in value if isinstance(value, tuple) else (value,):
            if isinstance(part, TensorArgument):
                yield move(part.index)
            else:
                yield (part, part) if isinstance(part, int | float) else None


MOVED: Final = frozenset({"self", "other", "tensors", "value", "fill_value", "s"})
"""Operands whose values the operators of :func:`find_moved` return."""

NAMES: Final[Mapping[Rule, str]] = MappingProxyType(
    {
        find_drawn: "randint randint_like randperm",
        find_counted: "arange",
        find_positions: "argmax argmin sort topk max min multinomial",
        find_moved: "clone to_copy cat stack index index_select gather masked_select "
        "flip roll repeat where masked_fill constant_pad_nd full new_full "
        "scalar_tensor",
        lambda *_: (0, 0): "zeros zeros_like new_zeros",
        lambda *_: (1, 1): "ones ones_like new_ones",
    }
)
RULES: Final = {name: rule for rule, names in NAMES.items() for name in names.split()}
"""By the operator's name, without underscores around it."""


def find_changes(signature: Signature) -> tuple[int, Sequence[int]]:
    """Return the length of a signature's rows, and the positions of changed tensors.

    A call changes the tensors that it writes, and the integer tensors that it makes.
    """
    n_inputs = len(signature.inputs)
    made = zip(signature.outputs, signature.views, strict=True)
    changed = [HEADER + index for index in signature.writes]
    changed += [
        HEADER + n_inputs + index
        for index, (geometry, base) in enumerate(made)
        if base is None and is_integer(geometry.dtype)
    ]
    return HEADER + n_inputs + len(signature.outputs), changed


def is_integer(dtype: torch.dtype) -> bool:
    """Whether a tensor of a dtype holds integers or booleans."""
    return not (dtype.is_floating_point or dtype.is_complex)
