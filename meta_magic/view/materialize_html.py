"""The report of ``materialize`` as HTML, in the panel or as the output of a cell."""

from collections import Counter
from collections.abc import Iterable, Sequence
from html import escape
from importlib.resources import files
from typing import TYPE_CHECKING, Final

from meta_magic.materializing.report import (
    DRAWN_OTHERWISE,
    KEPT,
    LEFT,
    UNINITIALIZED,
    WHY_OTHERWISE,
    format_on_meta,
)
from meta_magic.trace.units import format_bytes, format_shape

if TYPE_CHECKING:
    from meta_magic.materializing.report import FilledTensor, MaterializeReport


COLUMNS: Final = ("tensor", "kind", "shape", "dtype", "bytes", "filled by", "tied to")

MAX_OPEN: Final = 12
"""A table with more tensors is folded at first."""

RED: Final = {
    UNINITIALIZED: (
        "UNINITIALIZED: {} whatever was in memory before",
        "{:,} uninitialized",
    ),
    DRAWN_OTHERWISE: (
        f"DRAWN OTHERWISE: {{}} {WHY_OTHERWISE}",
        "{:,} drawn otherwise",
    ),
    LEFT: ("LEFT ON META: {} no values, and what uses it fails", LEFT),
}
"""Warning and title of tensors in red: they differ from those of a real run."""

MAX_ROWS: Final = 1000
"""Rows of a table; more would make the notebook's file large."""

STYLES: Final = ("report.css", "panel.css")


def render_materialize_report(report: "MaterializeReport") -> str:
    """Return headline, warnings, notes and tensors as HTML.

    Every name comes from the user's code and is escaped.
    """
    static = files("meta_magic.view") / "static"
    style = "".join((static / name).read_text("utf-8") for name in STYLES)
    good = [t for t in report.tensors if t.filled_by not in RED]
    parts = [f"<style>{style}</style>", f"<p>{escape(format_headline(report))}</p>"]
    for source, (warning, title) in RED.items():
        found = [t for t in report.tensors if t.filled_by == source]
        if found:
            n = len(found)
            holds = "1 tensor holds" if n == 1 else f"{n:,} tensors hold"
            parts.append(f'<p class="mm-danger">{warning.format(holds)}</p>')
            parts.append(render_folded(found, title.format(n)))
    on_meta = [format_on_meta(report.on_meta)] if report.on_meta else []
    notes = [*report.notes, *on_meta]
    if notes:
        parts.append(
            f"<ul>{''.join(f'<li>{escape(note)}</li>' for note in notes)}</ul>"
        )
    if good:
        parts.append(render_folded(good, summarize(good)))
    return f'<div class="mm-report mm-materialized">{"".join(parts)}</div>'


def format_headline(report: "MaterializeReport") -> str:
    """Return one line: the module, its devices, bytes and seconds."""
    made = [t for t in report.tensors if t.filled_by not in (KEPT, LEFT)]
    tensors = f"{len(made):,} tensor{'' if len(made) == 1 else 's'}"
    return (
        f"{report.module} on {report.places} · {tensors}, "
        f"{format_bytes(report.nbytes)} · {report.seconds:.2f} s"
    )


def summarize(tensors: Sequence["FilledTensor"]) -> str:
    """Return the number of tensors by source, the most frequent first."""
    counts = Counter(t.filled_by for t in tensors).most_common()
    return ", ".join(
        f"{n:,} kept as before" if kind == KEPT else f"{n:,} by {kind}"
        for kind, n in counts
    )


def render_folded(tensors: Sequence["FilledTensor"], title: str) -> str:
    """Return the table of some tensors, folded if it is long."""
    is_open = " open" if len(tensors) <= MAX_OPEN else ""
    table = render_table(tensors[:MAX_ROWS])
    if len(tensors) > MAX_ROWS:
        table += f"<div>… {len(tensors) - MAX_ROWS:,} more</div>"
    return f"<details{is_open}><summary>{escape(title)}</summary>{table}</details>"


def render_table(tensors: Iterable["FilledTensor"]) -> str:
    """Return one row for each tensor, below the names of the columns."""
    head = "".join(f'<th scope="col">{name}</th>' for name in COLUMNS)
    rows = "".join(map(render_row, tensors))
    return (
        f'<table class="mm-tensors"><thead><tr>{head}</tr></thead>'
        f"<tbody>{rows}</tbody></table>"
    )


def render_row(tensor: "FilledTensor") -> str:
    """Return the row of a tensor."""
    cells = (
        tensor.kind,
        format_shape(tensor.shape),
        str(tensor.dtype).removeprefix("torch."),
        format_bytes(tensor.nbytes),
        tensor.filled_by,
        tensor.tied_to or "",
    )
    is_bad = tensor.filled_by in RED
    opened = '<tr class="mm-danger">' if is_bad else "<tr>"
    named = f'<th scope="row">{escape(tensor.name)}</th>'
    return (
        f"{opened}{named}{''.join(f'<td>{escape(cell)}</td>' for cell in cells)}</tr>"
    )
