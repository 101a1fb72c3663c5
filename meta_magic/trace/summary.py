"""A trace as text: what ``print(trace)`` shows, and its operators as a table.

The summary line, the notes, the folded module tree, and for a block that failed one
line that says where: ``h.0.proj: Linear(2304 -> 768) got (4, 512, 3072) at line 25``.
Read ``format_summary`` first.
"""

import gc
import inspect
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields
from itertools import repeat
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from meta_magic.trace import op_columns
from meta_magic.trace.calls import (
    ModuleCall,
    OpCall,
    TensorMetadata,
    describe_flow,
    fill,
)
from meta_magic.trace.module_columns import TreeLine, build_tree, tree_columns
from meta_magic.trace.modules import at_any_depth, count_bytes, count_elements
from meta_magic.trace.op_columns import Format
from meta_magic.trace.program import Program, find_firsts
from meta_magic.trace.signature import Argument, Geometry, TensorArgument
from meta_magic.trace.units import (
    format_bytes,
    format_count,
    format_flops,
    format_line,
    format_shape,
)

if TYPE_CHECKING:
    import pandas as pd

    from meta_magic.trace.notes import Note
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


MAX_SIBLINGS: Final = 40
COLUMN_GAP: Final = 2


def format_number(number: float) -> str:
    """Return a number with three significant digits, such as ``7.94`` or ``12,300``."""
    return f"{float(f'{number:.3g}'):,.15g}"


Formats: TypeAlias = Mapping[Format, Callable[[Any], str]]

FORMATS: Final[Formats] = {
    "text": str,
    "number": format_number,
    "bytes": format_bytes,
    "count": format_count,
    "flops": format_flops,
    "share": "{:.1%}".format,
    "flow": " -> ".join,
    "marks": "; ".join,
    "function": str,
}
"""How texts write the values of a column, by its format."""


@at_any_depth
def format_summary(trace: "Trace", depth: int | None = None) -> str:
    """Return what ``print(trace)`` shows, with ``depth`` levels open; None for all."""
    failure = describe_failure(trace)
    lines = [failure, format_headline(trace)] if failure else [format_headline(trace)]
    for call in trace.ops[-1:]:
        if call.raised:
            where = f"{format_line(call.line)}{call.op}{describe_flow(call.inputs, ())}"
            lines.append(f"raised: {where}: {call.raised}")
    lines += [format_note(note) for note in trace.notes]
    lines += format_sent(trace)
    for root in trace.modules:
        lines += align([*format_lines(build_tree(root, trace.module_calls), depth)])
    return "\n".join(lines)


def format_headline(trace: "Trace") -> str:
    """Return the one line with parameters, operators, FLOPs, peak and time."""
    parts = []
    if trace.modules:
        parameters = count_elements(trace.modules, "parameter")
        nbytes = count_bytes(trace.modules, "parameter")
        parts.append(f"{format_count(parameters)} parameters, {format_bytes(nbytes)}")
    n_operators = trace.program.n_calls
    parts.append(f"{n_operators:,} operator{'' if n_operators == 1 else 's'}")
    parts.append(f"as on {trace.program.as_device}")
    if trace.world is not None:
        parts.append(f"rank {trace.world.rank} of {trace.world.size}")
    if trace.flops:
        parts.append(format_flops(trace.flops))
    peaks = trace.memory.peak_by_place.items()
    named = [
        f"{format_bytes(nbytes)} on {device}" for device, nbytes in peaks if nbytes
    ]
    if named:
        parts.append(f"peak {', '.join(named)}")
    parts.append(f"{trace.seconds:.2f} s")
    parts.append(f"{format_bytes(trace.nbytes_real)} really allocated")
    if trace.error:
        parts.append(f"stopped by {trace.error.split(':')[0]}")
    return " · ".join(parts)


def format_sent(trace: "Trace") -> list[str]:
    """Return a line for each kind of collective, with its number and bytes."""
    calls_by_kind: dict[tuple[str, int, str], list[int]] = {}
    for sent in trace.sent if trace.world is not None else ():
        kind = sent.kind, len(sent.ranks), sent.dtype
        calls_by_kind.setdefault(kind, []).append(sent.nbytes)
    return [
        f"sends: {len(sizes)} {kind} among {n_ranks} ranks, "
        f"{format_bytes(sum(sizes))} of {dtype}"
        for (kind, n_ranks, dtype), sizes in calls_by_kind.items()
    ]


def format_note(note: "Note") -> str:
    """Return one note on one line, and its repair on another one."""
    repair = f"\n  the note is gone with {note.repair}" if note.repair else ""
    text = f"{format_line(note.line)}{note.text}{describe_others(note)}"
    return f"note: {text}{repair}"


def describe_others(note: "Note") -> str:
    """Return the other lines of a note that its text does not name; "" for none."""
    named = {*map(int, re.findall(r"\bline (\d+)", note.text))}
    lines = [str(line) for line in note.lines if line not in named]
    word = "line" if len(lines) == 1 else "lines"
    return f" (see {word} {', '.join(lines)})" if lines else ""


def format_lines(
    line: TreeLine, depth: int | None, indent: str = ""
) -> Iterator[Sequence[str]]:
    """Yield the cells of a tree line and of ``depth`` levels below it; None for all."""
    name, *others = format_cells(line)
    yield indent + name, *others
    if depth == 0:
        return
    below = None if depth is None else depth - 1
    for child in line.children[:MAX_SIBLINGS]:
        yield from format_lines(child, below, indent + "  ")
    if len(line.children) > MAX_SIBLINGS:
        hidden = f"{indent}  … {len(line.children) - MAX_SIBLINGS:,} more"
        yield hidden, *("" for _ in others)


def format_cells(line: TreeLine, formats: Formats = FORMATS) -> list[str]:
    """Return the values of a line as texts; "" for what is absent or 0."""
    pairs = zip(tree_columns(), line.values, strict=True)
    return [formats[column.format](value) if value else "" for column, value in pairs]


def align(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return rows of cells as lines with aligned columns."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    pads = [str.rjust if column.is_number else str.ljust for column in tree_columns()]
    gap = " " * COLUMN_GAP
    return [
        gap.join(
            pad(cell, width) for pad, cell, width in zip(pads, row, widths, strict=True)
        ).rstrip()
        for row in rows
    ]


MAX_SHAPES: Final = 3
OWN_ERRORS: Final = "MissingValueError: ", "ValueLimitError: "
"""Beginnings of the errors that meta_magic raises, not torch."""


def describe_failure(trace: "Trace") -> str:
    """Return ``h.0.proj: Linear(2304 -> 768) got (4, 512, 3072) at line 25``.

    If a module's own code made the failed call, that call is named, not the class. ""
    where no call of torch raised.
    """
    call = trace.ops[-1] if len(trace.ops) else None
    if call is None or not call.raised:
        return ""
    if (trace.error or "").startswith(OWN_ERRORS):
        line = trace.error_line or call.line
        return f"line {line} needs a value that is not computed" if line else ""
    return "".join(describe_raised(trace, call))


def describe_raised(trace: "Trace", call: OpCall) -> Iterator[str]:
    """Yield the parts of the line about a call that raised."""
    number = call.module_call
    within = None if number is None else trace.module_calls[number]
    if within is not None:
        root = None if within.root is None else trace.modules[within.root]
        name = within.module or (root.name if root else "")
        yield f"{name}: " if name else ""
    # The module itself made the call: no other line of Python is between them.
    if within is not None and within.position == call.position:
        yield describe_module(trace, within)
        given = [tensor for _, tensor in within.inputs]
    else:
        yield shorten_op(call.op)
        given = [*call.inputs]
    yield f" got {list_shapes(given)}" if given else " raised"
    line = trace.error_line or call.line
    yield f" at line {line}" if line else ""


def shorten_op(name: str) -> str:
    """Return an operator without namespace and overload, a function without module."""
    first, *others = name.split(".")
    return others[0] if others and first != "torch" else name.rpartition(".")[2]


def describe_module(trace: "Trace", call: ModuleCall) -> str:
    """Return the class of a module with its sizes, or with its parameters' shapes."""
    raised = trace.program.raised
    if raised is not None and raised.sizes is not None:
        taken, given = raised.sizes
        return f"{call.class_name}({taken} -> {given})"
    nodes = () if call.root is None else trace.modules[call.root].walk()
    own = [
        f"{tensor.name} {format_shape(tensor.shape)}"
        for node in nodes
        if node.fqn == call.module
        for tensor in node.tensors
        if tensor.kind == "parameter" and not tensor.is_lazy
    ]
    return f"{call.class_name}({', '.join(own)})" if own else call.class_name


def list_shapes(tensors: Sequence[TensorMetadata]) -> str:
    """Return the first shapes, and how many more there are."""
    shapes = [tensor.shape for tensor in tensors]
    shown = ", ".join(map(format_shape, shapes[:MAX_SHAPES]))
    n_more = len(shapes) - MAX_SHAPES
    return f"{shown} +{n_more}" if n_more > 0 else shown
