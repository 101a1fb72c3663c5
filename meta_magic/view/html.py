"""The report as one piece of HTML: no script, no file beside it, no network."""

from collections.abc import Iterator
from html import escape
from importlib.resources import files
from typing import TYPE_CHECKING, Final

from meta_magic.trace.summary import MAX_SIBLINGS, format_headline
from meta_magic.trace.tree import TreeLine, build_tree
from meta_magic.trace.units import format_bytes, format_count

if TYPE_CHECKING:
    from meta_magic.trace.notes import Note
    from meta_magic.trace.trace import Trace

__all__ = ["render_html"]

OPEN_DEPTH: Final = 3
"""Levels of the tree that are open at first."""

COLUMNS: Final = ("module", "parameters", "bytes", "in → out", "")


def render_html(trace: "Trace") -> str:
    """Return the summary line, the notes and the folded module trees as HTML.

    Every name comes from the user's code and is escaped.
    """
    style = files("meta_magic.view").joinpath("static/report.css").read_text("utf-8")
    parts = [f"<style>{style}</style>", f"<p>{escape(format_headline(trace))}</p>"]
    if trace.notes:
        parts.append(f"<ul>{''.join(map(render_note, trace.notes))}</ul>")
    if trace.modules:
        parts.append(render_cells(COLUMNS, "mm-head", 0))
    for root in trace.modules:
        parts += render_line(build_tree(root, trace.module_calls), 0)
    return f'<div class="mm-report">{"".join(parts)}</div>'


def render_note(note: "Note") -> str:
    """Return one note as a list item."""
    where = f"line {note.line}: " if note.line else ""
    return f"<li>{escape(where + note.text)}</li>"


def render_line(line: TreeLine, depth: int) -> Iterator[str]:
    """Yield the HTML of a tree line and of all below it."""
    cells = (
        line.label,
        format_count(line.n_parameters) if line.n_parameters else "",
        format_bytes(line.nbytes) if line.nbytes else "",
        line.flow.replace("->", "→"),
        "; ".join(line.marks),
    )
    if not line.children:
        yield render_cells(cells, "mm-row", depth)
        return
    is_open = " open" if depth < OPEN_DEPTH else ""
    yield f"<details{is_open}><summary>{render_cells(cells, 'mm-row', depth)}</summary>"
    for child in line.children[:MAX_SIBLINGS]:
        yield from render_line(child, depth + 1)
    hidden = len(line.children) - MAX_SIBLINGS
    if hidden > 0:
        more = (f"… {hidden:,} more", "", "", "", "")
        yield render_cells(more, "mm-row", depth + 1)
    yield "</details>"


def render_cells(cells: tuple[str, ...], kind: str, depth: int) -> str:
    """Return one row; spaces between the cells keep it readable without the style."""
    spans = " ".join(f"<span>{escape(cell)}</span>" for cell in cells)
    return f'<div class="{kind}" style="--mm-depth:{depth}">{spans}</div>'
