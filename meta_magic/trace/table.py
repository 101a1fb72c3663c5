"""Operator calls as a table."""

import inspect
from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, TypeVar

from meta_magic.trace import op_columns
from meta_magic.trace.calls import OpCall

if TYPE_CHECKING:
    import pandas as pd

    from meta_magic.trace.op_columns import OpColumn

__all__ = ["build_table", "list_columns"]

Function = TypeVar("Function", bound=Callable[..., object])

NULLABLE = "int or None"
"""The type of a column that pandas would turn into floats where a value is absent."""


def build_table(calls: Sequence[OpCall]) -> "pd.DataFrame":
    """Return one row per call: the fields of :class:`OpCall`, then what they tell.

    Whole numbers that can be absent have pandas' nullable ``Int64`` type.
    """
    import pandas as pd  # noqa: PLC0415  0.3 s, on first use

    shown = order_columns()
    readers = [column.reader for column in shown]
    rows = [tuple(read(call) for read in readers) for call in calls]
    names = [column.name for column in shown]
    frame = pd.DataFrame(rows, columns=names).set_index("index", drop=False)
    frame.index.name = None
    absent = [column.name for column in shown if column.type == NULLABLE]
    return frame.astype(dict.fromkeys(absent, "Int64"))


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
