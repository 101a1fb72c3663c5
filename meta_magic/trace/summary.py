"""A trace as text: the summary line, the notes, the folded module tree."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

from meta_magic.trace.tree import TreeLine, build_tree
from meta_magic.trace.units import format_bytes, format_count, format_flops

if TYPE_CHECKING:
    from meta_magic.trace.notes import Note
    from meta_magic.trace.trace import Trace

__all__ = ["MAX_SIBLINGS", "format_headline", "format_note", "format_summary"]

MAX_SIBLINGS: Final = 40
COLUMN_GAP: Final = 2


def format_summary(trace: "Trace") -> str:
    """Return what ``print(trace)`` shows."""
    lines = [format_headline(trace)]
    lines += [format_note(note) for note in trace.notes]
    for root in trace.modules:
        lines += align([*format_lines(build_tree(root, trace.module_calls))])
    return "\n".join(lines)


def format_headline(trace: "Trace") -> str:
    """Return the one line that says what was run and what it takes."""
    parts = []
    if trace.modules:
        parameters = sum(root.n_parameters for root in trace.modules)
        nbytes = sum(root.parameter_nbytes for root in trace.modules)
        parts.append(f"{format_count(parameters)} parameters, {format_bytes(nbytes)}")
    n_operators = len(trace.ops)
    parts.append(f"{n_operators:,} operator{'' if n_operators == 1 else 's'}")
    parts.append(f"as on {trace.program.as_device}")
    if trace.flops:
        parts.append(format_flops(trace.flops))
    parts.append(f"{trace.seconds:.2f} s")
    parts.append(f"{format_bytes(trace.nbytes_real)} allocated")
    if trace.error:
        parts.append(f"stopped by {trace.error.split(':')[0]}")
    return " · ".join(parts)


def format_note(note: "Note") -> str:
    """Return one note on one line."""
    where = f"line {note.line}: " if note.line else ""
    return f"note: {where}{note.text}"


def format_lines(line: TreeLine, indent: str = "") -> Iterator[Sequence[str]]:
    """Yield the cells of a tree line and of all below it."""
    size = format_bytes(line.nbytes) if line.nbytes else ""
    count = format_count(line.n_parameters) if line.n_parameters else ""
    yield indent + line.label, count, size, line.flow, "; ".join(line.marks)
    for child in line.children[:MAX_SIBLINGS]:
        yield from format_lines(child, indent + "  ")
    if len(line.children) > MAX_SIBLINGS:
        yield f"{indent}  … {len(line.children) - MAX_SIBLINGS:,} more", "", "", "", ""


def align(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return rows of cells as lines whose columns stand below each other."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    gap = " " * COLUMN_GAP
    return [
        gap.join(
            cell.rjust(width) if i in (1, 2) else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
