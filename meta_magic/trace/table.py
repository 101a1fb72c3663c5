"""Operator calls as a table."""

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from meta_magic.trace import op_columns
from meta_magic.trace.calls import OpCall
from meta_magic.trace.firsts import find_firsts
from meta_magic.trace.flow_columns import build_flows
from meta_magic.trace.paused_collector import paused_collector

if TYPE_CHECKING:
    import pandas as pd
    from numpy.typing import NDArray

    from meta_magic.trace.op_columns import Decider, OpColumn
    from meta_magic.trace.trace import Trace

__all__ = ["build_table", "list_columns"]

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
