"""The columns of the report's tables on the wire, with the values it does not have."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, fields
from typing import TYPE_CHECKING, Any

from meta_magic.trace import module_columns, op_columns
from meta_magic.trace.derived_facts import find_firsts
from meta_magic.trace.module_columns import Run
from meta_magic.trace.op_columns import Column, OpColumn, Wire

if TYPE_CHECKING:
    from meta_magic.trace.calls import OpCall
    from meta_magic.trace.module_columns import ModuleColumn
    from meta_magic.trace.modules import ModuleNode
    from meta_magic.trace.trace import Trace

__all__ = ["columns_payload", "remarks_payload"]


def columns_payload(trace: "Trace") -> dict[str, list[dict[str, Any]]]:
    """Return the columns by table, in the order in which they are shown."""
    samples = find_samples(trace)
    calls: dict[Wire, Sequence[OpCall | None]] = {
        "call": trace.ops,
        "signature": samples,
    }
    runs = [Run(nodes=[root], calls=trace.module_calls) for root in trace.modules]
    nodes = [node for root in trace.modules for node in root.walk()]
    return {
        "ops": [
            write_op_column(c, calls) | hide(c, map(c.reader, filter(None, samples)))
            for c in op_columns.OP_COLUMNS
        ],
        "modules": [
            write_module_column(c, nodes) | hide(c, map(c.tell_run, runs))
            for c in module_columns.MODULE_COLUMNS
        ],
    }


def remarks_payload(trace: "Trace") -> dict[str, Any]:
    """Return what is said of some operators, by the column that says it."""
    return {
        column.name: column.wire(trace.program)
        for column in op_columns.OP_COLUMNS
        if callable(column.wire)
    }


def find_samples(trace: "Trace") -> list["OpCall | None"]:
    """Return the first call of each signature; None for one that no call has."""
    program = trace.program.with_raised
    firsts = find_firsts(trace.columns.signature, len(program.signatures))
    return [None if index < 0 else trace.ops[index] for index in firsts.tolist()]


def write_op_column(
    column: OpColumn, calls: Mapping[Wire, Sequence["OpCall | None"]]
) -> dict[str, Any]:
    """Return a column of the operators, with a value for each call or signature."""
    written = write_column(column)
    if column.wire in calls:
        read = column.reader
        values = [None if c is None else read(c) for c in calls[column.wire]]
        written |= {"wire": column.wire, "values": values}
    return written


def write_module_column(
    column: "ModuleColumn", nodes: Sequence["ModuleNode"]
) -> dict[str, Any]:
    """Return a column of the modules, with a value for each."""
    written = write_column(column)
    if column.read is not None:
        written |= {"add_up": column.add_up, "values": [*map(column.read, nodes)]}
    return written


def hide(column: Column, values: Iterable[object]) -> dict[str, bool]:
    """Return that a column is left out, if it may be and no row has a value."""
    return {"is_hidden": True} if column.is_optional and not any(values) else {}


def write_column(column: Column) -> dict[str, Any]:
    """Return what all tables know of a column.

    Left out is what is at its default, but for the width.
    """
    every = asdict(column)
    return {
        field.name: every[field.name]
        for field in fields(Column)
        if field.name == "width"
        or (every[field.name] != field.default and field.name != "is_optional")
    }
