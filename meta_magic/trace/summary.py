"""A trace as text: what ``print(trace)`` shows.

The summary line, the notes, the folded module tree, and for a block that failed one
line that says where: ``h.0.proj: Linear(2304 -> 768) got (4, 512, 3072) at line 25``.
Read ``format_summary`` first.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from meta_magic.trace.calls import ModuleCall, OpCall, TensorMetadata, describe_flow
from meta_magic.trace.module_columns import TreeLine, build_tree, tree_columns
from meta_magic.trace.modules import at_any_depth, count_bytes, count_elements
from meta_magic.trace.op_columns import Format
from meta_magic.trace.units import (
    format_bytes,
    format_count,
    format_flops,
    format_line,
    format_shape,
)

if TYPE_CHECKING:
    from meta_magic.trace.notes import Note
    from meta_magic.trace.trace import Trace

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
