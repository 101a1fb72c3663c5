"""Single records on the wire, and the tables in which each stands once."""

from collections.abc import Callable, Hashable, Mapping, Sequence
from math import prod
from typing import Any, Final, Generic, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from meta_magic.cost.program_columns import Integers
from meta_magic.trace.derived_facts import find_firsts
from meta_magic.trace.modules import ModuleTensor
from meta_magic.trace.signature import Argument, Geometry, Signature, SourcePosition
from meta_magic.trace.signature import TensorArgument as Stand

__all__ = [
    "Table",
    "as_columns",
    "as_deltas",
    "as_differences",
    "count_runs",
    "format_arguments",
    "write_geometry",
    "write_position",
    "write_tensor",
]

MAX_TEXT: Final = 300

Numbers: TypeAlias = Integers | NDArray[np.uint32] | Sequence[int]

Item = TypeVar("Item", bound=Hashable)


class Table(Generic[Item]):
    """Distinct items in order of first sight, and how each is written."""

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
        """Return the numbers of many items, of which there are few different ones.

        Args:
            items: The different ones.
            numbers: Of each of the many its index in ``items``; -1 for none, which has
                the number -1, too.
        """
        firsts = find_firsts(numbers + 1, len(items) + 1)[1:]
        found = np.full(len(items) + 1, -1)  # the last for none
        for index in np.argsort(firsts):
            if firsts[index] >= 0:
                found[index] = self.of(items[index])
        chosen: list[int] = found[numbers].tolist()
        return chosen


def write_geometry(geometry: Geometry) -> dict[str, Any]:
    """Return what the report tells of a tensor."""
    named = {} if geometry.place is None else {"place": str(geometry.place)}
    return named | {
        "shape": geometry.shape,
        "stride": geometry.stride,
        "offset": geometry.storage_offset or 0,
        "dtype": str(geometry.dtype).removeprefix("torch."),
        "device": str(geometry.device),
        "layout": str(geometry.layout).removeprefix("torch."),
        "nbytes": prod(geometry.shape) * geometry.dtype.itemsize,
    }


def write_position(position: SourcePosition) -> dict[str, Any]:
    """Return a stretch of source."""
    column, end_column = position.column, position.end_column
    return {
        "file": position.file,
        "scope": position.function,
        "start": position.line,
        "end": position.end_line,
        "column": -1 if column is None else column,
        "end_column": -1 if end_column is None else end_column,
    }


def write_tensor(tensor: ModuleTensor) -> dict[str, Any]:
    """Return a tensor that a module holds."""
    named = {} if tensor.place is None else {"place": str(tensor.place)}
    return named | {
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
    """Return how far each number lies below the first one not met; 0 for that itself.

    Layers that are alike then read alike.
    """
    found = np.asarray(numbers, np.int64)
    n_met = np.maximum.accumulate(found + 1)
    deltas: list[int] = (np.append(0, n_met[:-1]) - found).tolist()
    return deltas[: len(found)]


def as_differences(numbers: Numbers) -> list[int]:
    """Return the first number, and then the step to each next one."""
    differences: list[int] = np.diff(np.asarray(numbers, np.int64), prepend=0).tolist()
    return differences


def as_columns(records: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """Return records of the same fields as columns, where gzip finds what repeats."""
    names = records[0] if records else ()
    return {name: [record[name] for record in records] for name in names}


def count_runs(numbers: Numbers) -> list[int]:
    """Return how often each number stands in a row."""
    found = np.asarray(numbers, np.int64)
    starts = np.flatnonzero(np.diff(found, prepend=found[:1] - 1))
    counts: list[int] = np.diff(starts, append=len(found)).tolist()
    return counts


def format_arguments(signature: Signature) -> str:
    """Return the arguments that are no tensors, as one would write them."""
    shown = (
        f"{name}={format_argument(value)}"
        for name, value in signature.arguments
        if has_more_than_tensors(value)
    )
    return ", ".join(shown)[:MAX_TEXT]


def has_more_than_tensors(value: Argument) -> bool:
    """Whether an argument is more than tensors."""
    if isinstance(value, tuple) and value:
        return any(map(has_more_than_tensors, value))
    return not isinstance(value, Stand)


def format_argument(value: Argument) -> str:
    """Return an argument as one would write it."""
    if isinstance(value, Stand):
        return f"#{value.index}"
    if isinstance(value, tuple):
        return f"[{', '.join(map(format_argument, value))}]"
    return str(value).removeprefix("torch.")
