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
from dataclasses import dataclass, fields
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
"""The type of a column that pandas would turn into floats where a value is absent."""


def build_table(trace: "Trace") -> "pd.DataFrame":
    """Return one row per call: the fields of :class:`OpCall`, then what they tell.

    Whole numbers that can be absent have pandas' nullable ``Int64`` type.
    """
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
        frame = pd.DataFrame(values).set_index("index", drop=False)
    frame.index.name = None
    return frame


class Samples:
    """The first call of each number, of all calls that have a number in common.

    Args:
        numbers: Of each call, from 0.
        calls: The calls.
    """

    def __init__(self, numbers: "NDArray[np.int64]", calls: Sequence[OpCall]) -> None:
        firsts = find_firsts(numbers, numbers.max(initial=-1) + 1)
        is_met = firsts >= 0
        self.calls = [calls[index] for index in firsts[is_met].tolist()]
        self._ranks = (np.cumsum(is_met) - 1)[numbers]

    def spread(self, column: "OpColumn") -> Any:
        """Return the values of a column, each read of the first call alone."""
        return as_array(map(column.reader, self.calls), column).take(self._ranks)


def find_samples(trace: "Trace") -> "dict[Decider, Samples]":
    """Return the calls of which the values of others are read, too."""
    calls, columns = trace.ops, trace.columns
    holders = columns.find_holders(trace.program)
    return {
        "signature": Samples(columns.signature, calls),
        "place": Samples(columns.place + 1, calls),
        "module": Samples(holders + 1, calls),
    }


def read_at_once(trace: "Trace") -> "dict[str, Any]":
    """Return the fields of all calls that each call decides by itself, by their name.

    Arrays of numpy or pandas.
    """
    calls, columns = trace.ops, trace.columns
    flows = build_flows(trace)
    return {
        "index": np.arange(len(calls)),
        "inputs": flows.inputs,
        "outputs": flows.outputs,
        "arguments": flows.arguments,
        "forward": as_nullable(columns.forward),
        "module_call": as_nullable(columns.module_call),
        "evaluation": spread_some(calls.evaluation_by_call, len(calls)),
        "kernel": spread_some(calls.kernel_by_call, len(calls)),
        "assumed": spread_some(calls.assumed_by_call, len(calls)),
        "raised": spread_some(calls.raised_by_call, len(calls)),
    }


def as_array(values: Iterable[object], column: "OpColumn | None" = None) -> Any:
    """Return values as pandas holds them, of the type that they or the column tell."""
    import pandas as pd  # noqa: PLC0415  as above

    found: list[Any] = [*values]
    if column is not None and column.type == NULLABLE:
        return pd.array(found, dtype="Int64")
    return pd.Series(found).array


def as_nullable(numbers: "NDArray[np.int64]") -> "pd.arrays.IntegerArray":
    """Return whole numbers as pandas holds them, those below 0 as absent."""
    import pandas as pd  # noqa: PLC0415  as above

    return pd.arrays.IntegerArray(numbers.copy(), numbers < 0)


def spread_some(value_by_call: Mapping[int, object], n_calls: int) -> Any:
    """Return the values of all calls, of which some have one and the others None."""
    ranks = np.zeros(n_calls, np.int64)
    ranks[[*value_by_call]] = np.arange(1, len(value_by_call) + 1)
    return as_array([None, *value_by_call.values()]).take(ranks)


def order_columns() -> "list[OpColumn]":
    """Return the columns in the order of OpCall's fields, those that are none last."""
    names = [field.name for field in fields(OpCall)]
    rank_by_name = {name: rank for rank, name in enumerate(names)}
    return sorted(
        [column for column in op_columns.OP_COLUMNS if column.is_in_table],
        key=lambda c: rank_by_name.get(c.name, len(names)),
    )


def list_columns(function: Function) -> Function:
    """Add the columns, their types and units to the docstring of a function."""
    lines = [inspect.getdoc(function) or "", "", "Columns:"]
    for column in order_columns():
        kind = f"{column.type}, {column.unit}" if column.unit else column.type
        lines.append(f"    {column.name} ({kind}): {column.help}")
    function.__doc__ = "\n".join(lines)
    return function


Objects: TypeAlias = NDArray[np.object_]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Flows:
    """What went into each call and what came out, as the fields of ``OpCall``.

    Attributes:
        inputs: Of each call the tensors that it reads.
        outputs: Of each call those that it returns.
        arguments: Of each call its arguments.
    """

    inputs: Objects
    outputs: Objects
    arguments: Objects


def build_flows(trace: "Trace") -> Flows:
    """Return inputs, outputs and arguments of each call."""
    program, columns = trace.program.with_raised, trace.columns
    tensors = build_tensors(trace)
    sides = [np.empty(columns.n_calls, object) for _ in fields(Flows)]
    inputs, outputs, arguments = sides
    groups = group_calls(columns.signature)
    for signature, calls in zip(program.signatures, groups, strict=False):
        n, n_inputs = len(calls), len(signature.inputs)
        slots = range(n_inputs + len(signature.outputs))
        starts = columns.first[calls]
        found = [tensors[starts + slot].tolist() for slot in slots]
        inputs[calls] = as_objects(join(found[:n_inputs], n), n)
        outputs[calls] = as_objects(join(found[n_inputs:], n), n)
        arguments[calls] = as_objects(fill_all(signature.arguments, found, n), n)
    return Flows(inputs=inputs, outputs=outputs, arguments=arguments)


def group_calls(numbers: NDArray[np.int64]) -> list[NDArray[np.int64]]:
    """Return the calls of each signature, up to the last one that has any."""
    order = np.argsort(numbers, kind="stable")
    return np.split(order, np.cumsum(np.bincount(numbers))[:-1])


def join(found: Sequence[Sequence[object]], n: int) -> Iterable[tuple[object, ...]]:
    """Return for each of so many calls the tuple of what it has in each column."""
    return zip(*found, strict=True) if found else repeat((), n)


def fill_all(
    value: Argument, found: Sequence[Sequence[TensorMetadata]], n: int
) -> Iterable[Argument]:
    """Return ``value`` of each call, each tensor's stand-in replaced by the tensor.

    Args:
        value: An argument of a signature, or all of them.
        found: For each slot of the signature the tensors of its calls.
        n: How many calls there are.
    """
    if isinstance(value, TensorArgument):
        return found[value.index]
    if isinstance(value, tuple) and has_tensor(value):
        return zip(*(fill_all(item, found, n) for item in value), strict=True)
    return repeat(fill(value, ()), n)


def has_tensor(value: Argument) -> bool:
    """Whether an argument is a tensor, or has one within."""
    if isinstance(value, tuple):
        return any(map(has_tensor, value))
    return isinstance(value, TensorArgument)


def as_objects(values: Iterable[object], n: int) -> Objects:
    """Return values as an array, where a tuple is one of them."""
    return np.fromiter(values, object, n)


def build_tensors(trace: "Trace") -> Objects:
    """Return the metadata of each tensor of the columns, equal ones as one object."""
    import pandas as pd  # noqa: PLC0415  0.3 s, on first use

    program, columns = trace.program.with_raised, trace.columns
    geometries, number_of_slot = list_geometries(program)
    geometry = number_of_slot[columns.slot]
    keys = columns.tensor.astype(np.int64) * len(geometries) + geometry
    place, distinct = pd.factorize(keys)
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
    return as_objects(build_records(known, len(kind)), len(kind))[place]


def list_geometries(program: Program) -> tuple[list[Geometry], NDArray[np.int64]]:
    """Return the geometries of all signatures, and of each slot the index of its."""
    sides = [side for s in program.signatures for side in (s.inputs, s.outputs)]
    slots = [geometry for side in sides for geometry in side]
    by_id = {id(geometry): geometry for geometry in slots}
    rank_by_id = {key: rank for rank, key in enumerate(by_id)}
    ranks = [rank_by_id[id(geometry)] for geometry in slots]
    return [*by_id.values()], np.asarray(ranks, np.int64)


def build_records(
    values: "dict[str, Iterable[object]]", n: int
) -> Iterator[TensorMetadata]:
    """Return records, given the values of each field.

    Each slot is set for all of them by one call that stays in C, as ``__init__`` of a
    frozen record does one by one.
    """
    records: list[Any] = [*map(object.__new__, repeat(TensorMetadata, n))]
    for field in fields(TensorMetadata):
        put = getattr(TensorMetadata, field.name).__set__
        deque(map(put, records, values[field.name]), maxlen=0)
    return iter(records)


@contextmanager
def paused_collector(*, ages: bool = False) -> Iterator[None]:
    """Have no garbage looked for within, if it was before.

    Each look takes time for all objects that were made so far; of millions, as much as
    they took to build.

    Args:
        ages: Whether all count as old afterwards, which are looked at most rarely.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            if ages and not gc.get_freeze_count():  # what the user froze is to stay so
                gc.freeze()
                gc.unfreeze()
            gc.enable()
