"""Parts of the payload: tables of distinct items, columns, single records as JSON.

Repeated values become indices into tables, so that gzip finds what repeats.
"""

from collections.abc import Callable, Hashable, Mapping, Sequence
from math import prod
from typing import Any, Final, Generic, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from meta_magic.cost.program_columns import Integers
from meta_magic.trace.modules import ModuleTensor
from meta_magic.trace.program import find_firsts
from meta_magic.trace.signature import (
    Argument,
    Geometry,
    Signature,
    SourcePosition,
    TensorArgument,
)
from meta_magic.trace.units import format_shape

MAX_TEXT: Final = 300
Numbers: TypeAlias = Integers | NDArray[np.uint32] | Sequence[int]
Item = TypeVar("Item", bound=Hashable)


class Table(Generic[Item]):
    """Distinct items in order of first use, written as JSON."""

    def __init__(self, write: Callable[[Item], Any]) -> None:
        self.rows: list[Any] = []
        self._write = write
        self._number_by_item: dict[Item, int] = {}

    def of(self, item: Item) -> int:
        """Return the number of an item."""
        number = self._number_by_item.get(item)
        if number is None:
            number = self._number_by_item[item] = len(self.rows)
            self.rows.append(None)
            self.rows[number] = self._write(item)
        return number

    def all_of(self, items: Sequence[Item], numbers: Integers) -> list[int]:
        """Return the numbers of many items, few of them distinct.

        ``numbers`` has for each its index in ``items``; -1 for none, which stays -1.
        """
        firsts = find_firsts(numbers + 1, len(items) + 1)[1:]
        found = np.full(len(items) + 1, -1)  # the last for none
        for index in np.argsort(firsts):
            if firsts[index] >= 0:
                found[index] = self.of(items[index])
        chosen: list[int] = found[numbers].tolist()
        return chosen


def write_geometry(geometry: Geometry) -> dict[str, Any]:
    """Return the metadata of a tensor."""
    named = {} if geometry.placement is None else {"place": str(geometry.placement)}
    return {
        **named,
        **write_names(geometry.shape),
        "shape": geometry.shape,
        "stride": geometry.stride,
        "offset": geometry.storage_offset or 0,
        "dtype": str(geometry.dtype).removeprefix("torch."),
        "device": str(geometry.device),
        "layout": str(geometry.layout).removeprefix("torch."),
        "nbytes": prod(geometry.shape) * geometry.dtype.itemsize,
    }


def write_names(shape: Sequence[int]) -> dict[str, list[str]]:
    """Return the sizes of a shape by name, if one of them has a name."""
    texts = [str(size) for size in shape]
    is_named = any(not text.isdecimal() for text in texts)
    return {"names": texts} if is_named else {}


def write_position(position: SourcePosition, file: str) -> dict[str, Any]:
    """Return a stretch of source; ``file`` is what the report calls its file."""
    column, end_column = position.column, position.end_column
    return {
        "file": file,
        "scope": position.function,
        "start": position.line,
        "end": position.end_line,
        "column": -1 if column is None else column,
        "end_column": -1 if end_column is None else end_column,
    }


def write_tensor(tensor: ModuleTensor) -> dict[str, Any]:
    """Return a tensor that a module holds."""
    named = {} if tensor.place is None else {"place": str(tensor.place)}
    if tensor.sharding is not None:
        local = format_shape(tensor.local_shape or ())
        named["sharding"] = f"{tensor.sharding}, local {local}"
    return {
        **named,
        **write_names(tensor.shape),
        "name": tensor.name,
        "kind": tensor.kind,
        "shape": tensor.shape,
        "dtype": str(tensor.dtype).removeprefix("torch."),
        "numel": tensor.numel,
        "nbytes": tensor.nbytes,
        "is_persistent": tensor.is_persistent,
        "is_lazy": tensor.is_lazy,
        "requires_grad": tensor.requires_grad,
        "is_real": tensor.device.type != "meta",
        "tied_to": tensor.tied_to or "",
    }


def as_deltas(numbers: Numbers) -> list[int]:
    """Return how far each number lies below the first unused one, which gives 0.

    Identical layers then give identical numbers, which gzip compresses.
    """
    found = np.asarray(numbers, np.int64)
    n_used = np.maximum.accumulate(found + 1)
    deltas: list[int] = (np.append(0, n_used[:-1]) - found).tolist()
    return deltas[: len(found)]


def as_differences(numbers: Numbers) -> list[int]:
    """Return the first number, and then the difference to each next one."""
    differences: list[int] = np.diff(np.asarray(numbers, np.int64), prepend=0).tolist()
    return differences


def as_columns(records: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """Return records of the same fields as columns."""
    names = records[0] if records else ()
    return {name: [record[name] for record in records] for name in names}


def count_runs(numbers: Numbers) -> list[int]:
    """Return the lengths of runs of equal numbers."""
    found = np.asarray(numbers, np.int64)
    starts = np.flatnonzero(np.diff(found, prepend=found[:1] - 1))
    counts: list[int] = np.diff(starts, append=len(found)).tolist()
    return counts


def format_arguments(signature: Signature) -> str:
    """Return the arguments that are no tensors, as Python code."""
    shown = (
        f"{name}={format_argument(value)}"
        for name, value in signature.arguments
        if has_more_than_tensors(value)
    )
    return ", ".join(shown)[:MAX_TEXT]


def has_more_than_tensors(value: Argument) -> bool:
    """Whether an argument holds a number, a text or another plain value."""
    if isinstance(value, tuple) and value:
        return any(map(has_more_than_tensors, value))
    return not isinstance(value, TensorArgument)


def format_argument(value: Argument) -> str:
    """Return an argument as Python code; a tensor by its number."""
    if isinstance(value, TensorArgument):
        return f"#{value.index}"
    if isinstance(value, tuple):
        return f"[{', '.join(map(format_argument, value))}]"
    return str(value).removeprefix("torch.")
