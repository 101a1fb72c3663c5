"""Operator calls as a table: ``trace.to_pandas()``.

Record by record a million calls would take minutes. So values that calls of one
signature, call site or module share are read once (``Samples``), and tensors and
arguments are built field by field for all calls at once (``build_flows``), by loops
that run in C. Read ``build_table`` first.
"""

import gc
import inspect
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields
from itertools import repeat
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from meta_magic.trace import op_columns
from meta_magic.trace.calls import OpCall, TensorMetadata
from meta_magic.trace.derived_facts import find_firsts
from meta_magic.trace.program import Program
from meta_magic.trace.sequences import fill
from meta_magic.trace.signature import Argument, Geometry, TensorArgument

if TYPE_CHECKING:
    import pandas as pd

    from meta_magic.trace.op_columns import Decider, OpColumn
    from meta_magic.trace.trace import Trace

Function = TypeVar("Function", bound=Callable[..., object])

NULLABLE = "int or None"
"""The type of columns that pandas would turn into floats where a value is absent."""


def build_table(trace: "Trace", *, dims: bool = False) -> "pd.DataFrame":
    """Return a row for each call: the fields of :class:`OpCall`, then other columns."""
    import pandas as pd  # noqa: PLC0415  0.3 s, on first use

    with paused_collector(ages=True):
        samples, at_once = find_samples(trace), read_at_once(trace)
        values: dict[str, Any] = {}
        for column in order_columns():
            if column.decided_by in samples:
                values[column.name] = samples[column.decided_by].spread(column)
            elif column.name in at_once:
                values[column.name] = at_once[column.name]
            else:
                values[column.name] = as_array(map(column.reader, trace.ops), column)
        if dims:
            named = {"inputs": "input_shapes", "outputs": "output_shapes"}
            for side, name in named.items():
                values[name] = [
                    ", ".join(f"[{', '.join(map(str, one.shape))}]" for one in row)
                    for row in values[side]
                ]
        frame = pd.DataFrame(values).set_index("index", drop=False)
    frame.index.name = None
    return frame


class Samples:
    """The first call of each group; all calls of a group have equal values.

    ``numbers`` has the group of each call, from 0.
    """

    def __init__(self, numbers: NDArray[np.int64], calls: Sequence[OpCall]) -> None:
        firsts = find_firsts(numbers, numbers.max(initial=-1) + 1)
        is_used = firsts >= 0
        self.calls = [calls[index] for index in firsts[is_used].tolist()]
        self._ranks = (np.cumsum(is_used) - 1)[numbers]

    def spread(self, column: "OpColumn") -> Any:
        """Return the values of a column for all calls, read of the first ones alone."""
        return as_array(map(column.reader, self.calls), column).take(self._ranks)


def find_samples(trace: "Trace") -> "dict[Decider, Samples]":
    """Return the groups of calls by ``OpColumn.decided_by``."""
    calls, columns = trace.ops, trace.columns
    holders = columns.find_holders(trace.program)
    return {
        "signature": Samples(columns.signature, calls),
        "call_site": Samples(columns.call_site + 1, calls),
        "module": Samples(holders + 1, calls),
    }


def read_at_once(trace: "Trace") -> "dict[str, Any]":
    """Return the columns whose values differ from call to call, as arrays."""
    calls, columns = trace.ops, trace.columns
    return {
        "index": np.arange(len(calls)),
        **build_flows(trace),
        "forward": as_nullable(columns.forward),
        "module_call": as_nullable(columns.module_call),
        "evaluation": spread_some(calls.evaluation_by_call, len(calls)),
        "kernel": spread_some(calls.kernel_by_call, len(calls)),
        "assumed": spread_some(calls.assumed_by_call, len(calls)),
        "raised": spread_some(calls.raised_by_call, len(calls)),
    }


def as_array(values: Iterable[object], column: "OpColumn | None" = None) -> Any:
    """Return values as a pandas array, of the column's type or a type that fits."""
    import pandas as pd  # noqa: PLC0415  as above

    found: list[Any] = [*values]
    if column is not None and column.type == NULLABLE:
        return pd.array(found, dtype="Int64")
    return pd.Series(found).array


def as_nullable(numbers: NDArray[np.int64]) -> "pd.arrays.IntegerArray":
    """Return numbers as a nullable pandas array, those below 0 as absent."""
    import pandas as pd  # noqa: PLC0415  as above

    return pd.arrays.IntegerArray(numbers.copy(), numbers < 0)


def spread_some(value_by_call: Mapping[int, object], n_calls: int) -> Any:
    """Return the values of all calls, None for calls without one."""
    ranks = np.zeros(n_calls, np.int64)
    ranks[[*value_by_call]] = np.arange(1, len(value_by_call) + 1)
    return as_array([None, *value_by_call.values()]).take(ranks)


def order_columns() -> "list[OpColumn]":
    """Return the columns in the order of OpCall's fields, other columns last."""
    names = [field.name for field in fields(OpCall)]
    rank_by_name = {name: rank for rank, name in enumerate(names)}
    return sorted(
        [column for column in op_columns.OP_COLUMNS if column.is_in_table],
        key=lambda c: rank_by_name.get(c.name, len(names)),
    )


def document_columns(function: Function) -> Function:
    """Add the columns, their types and units to the docstring of a function."""
    lines = [inspect.getdoc(function) or "", "", "Columns:"]
    for column in order_columns():
        kind = f"{column.type}, {column.unit}" if column.unit else column.type
        lines.append(f"    {column.name} ({kind}): {column.help}")
    function.__doc__ = "\n".join(lines)
    return function


Objects: TypeAlias = NDArray[np.object_]


def build_flows(trace: "Trace") -> dict[str, Objects]:
    """Return ``inputs``, ``outputs`` and ``arguments`` of each call, as columns."""
    program, columns = trace.program.with_raised, trace.columns
    tensors = build_tensors(trace)
    inputs, outputs, arguments = (np.empty(columns.n_calls, object) for _ in range(3))
    order = np.argsort(columns.signature, kind="stable")
    groups = np.split(order, np.cumsum(np.bincount(columns.signature))[:-1])
    for signature, calls in zip(program.signatures, groups, strict=False):
        n, n_inputs = len(calls), len(signature.inputs)
        slots = range(n_inputs + len(signature.outputs))
        starts = columns.first[calls]
        found = [tensors[starts + slot].tolist() for slot in slots]
        # ``fromiter``: a tuple is one value, not a row of an array.
        inputs[calls] = np.fromiter(zip_slots(found[:n_inputs], n), object, n)
        outputs[calls] = np.fromiter(zip_slots(found[n_inputs:], n), object, n)
        filled = fill_all(signature.arguments, found, n)
        arguments[calls] = np.fromiter(filled, object, n)
    return {"inputs": inputs, "outputs": outputs, "arguments": arguments}


def zip_slots(
    found: Sequence[Sequence[object]], n: int
) -> Iterable[tuple[object, ...]]:
    """Return for each of ``n`` calls the tuple of its tensors in each slot."""
    return zip(*found, strict=True) if found else repeat((), n)


def fill_all(
    value: Argument, found: Sequence[Sequence[TensorMetadata]], n: int
) -> Iterable[Argument]:
    """Return ``value`` for each of ``n`` calls, with tensors filled in.

    ``found`` has for each slot of the signature the tensors of its calls.
    """
    if isinstance(value, TensorArgument):
        return found[value.index]
    if isinstance(value, tuple) and has_tensor(value):
        return zip(*(fill_all(item, found, n) for item in value), strict=True)
    return repeat(fill(value, ()), n)


def has_tensor(value: Argument) -> bool:
    """Whether an argument is a tensor, or contains one."""
    if isinstance(value, tuple):
        return any(map(has_tensor, value))
    return isinstance(value, TensorArgument)


def build_tensors(trace: "Trace") -> Objects:
    """Return the metadata of each tensor of the columns; equal ones are one object."""
    import pandas as pd  # noqa: PLC0415  0.3 s, on first use

    program, columns = trace.program.with_raised, trace.columns
    geometries, number_of_slot = list_geometries(program)
    geometry = number_of_slot[columns.slot]
    keys = columns.tensor.astype(np.int64) * len(geometries) + geometry
    codes, distinct = pd.factorize(keys)
    numbers, kinds = np.divmod(distinct, max(len(geometries), 1))
    storages = np.frombuffer(program.storage_by_tensor, np.uint32)[numbers]
    known: dict[str, Iterable[object]] = {
        "tensor_id": numbers.tolist(),
        "storage_id": storages.tolist(),
        "requires_grad": repeat(None),
    }
    kind = kinds.tolist()
    for field in fields(Geometry):
        values = [getattr(geometry, field.name) for geometry in geometries]
        known[field.name] = map(values.__getitem__, kind)
    known["place"] = known.pop("placement")  # a public name of the records
    return np.fromiter(build_records(known, len(kind)), object, len(kind))[codes]


def list_geometries(program: Program) -> tuple[list[Geometry], NDArray[np.int64]]:
    """Return the geometries of all signatures, and the index of each slot's."""
    sides = [side for s in program.signatures for side in (s.inputs, s.outputs)]
    slots = [geometry for side in sides for geometry in side]
    by_id = {id(geometry): geometry for geometry in slots}
    rank_by_id = {key: rank for rank, key in enumerate(by_id)}
    ranks = [rank_by_id[id(geometry)] for geometry in slots]
    return [*by_id.values()], np.asarray(ranks, np.int64)


def build_records(
    values: "dict[str, Iterable[object]]", n: int
) -> Iterator[TensorMetadata]:
    """Return ``n`` records, given the values of each field.

    Each field is set for all records by one loop in C; ``__init__`` of a frozen record
    would be called a million times.
    """
    records: list[Any] = [*map(object.__new__, repeat(TensorMetadata, n))]
    for field in fields(TensorMetadata):
        put = getattr(TensorMetadata, field.name).__set__
        deque(map(put, records, values[field.name]), maxlen=0)
    return iter(records)


@contextmanager
def paused_collector(*, ages: bool = False) -> Iterator[None]:
    """Pause Python's garbage collector while many objects are built that all stay.

    Each collection walks all objects; with millions this takes as long as to build
    them.

    With ``ages`` all objects move to the oldest generation afterwards.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            if ages and not gc.get_freeze_count():  # else the user's own freeze ends
                gc.freeze()
                gc.unfreeze()
            gc.enable()
