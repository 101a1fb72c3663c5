"""The report without scripts: the module trees as plain HTML, and as text.

An untrusted notebook, GitHub and ``Trace._repr_html_`` show it. Read
:func:`render_html` first.
"""

from collections.abc import Iterable, Iterator, Sequence
from html import escape
from typing import TYPE_CHECKING, Final

from meta_magic.trace.module_columns import TreeLine, build_tree, tree_columns
from meta_magic.trace.modules import at_any_depth
from meta_magic.trace.summary import (
    FORMATS,
    MAX_SIBLINGS,
    Formats,
    describe_failure,
    describe_others,
    format_cells,
    format_headline,
    format_summary,
)
from meta_magic.trace.units import format_line
from meta_magic.view.scripts import read_styles

if TYPE_CHECKING:
    from meta_magic.trace.notes import Note
    from meta_magic.trace.trace import Trace


OPEN_DEPTH: Final = 3
"""Levels of the tree that are open at first."""

HTML_FORMATS: Final[Formats] = {**FORMATS, "flow": " → ".join}
"""As in plain text, which has ``->`` for the arrow."""

CELL_STYLES: Final = {
    "flow": "font-family: ui-monospace, monospace; font-size: 12px",
    "marks": "opacity: 0.75",
}
"""By format."""


def build_bundle(
    trace: "Trace", html: str | None = None, depth: int | None = None
) -> dict[str, str]:
    """Return the mime bundle of a trace's report: text for terminals, and HTML.

    ``html`` is that of the folded module trees by default; ``depth`` levels of modules
    are open, None for all in the text.
    """
    trace = trace.named
    shown = render_html(trace, depth) if html is None else html
    return {"text/plain": format_summary(trace, depth), "text/html": shown}


@at_any_depth
def render_html(trace: "Trace", depth: int | None = None) -> str:
    """Return the summary line, the notes and the folded module trees as HTML.

    Every name comes from the user's code and is escaped.

    ``depth`` levels of modules are open at first; None for three.
    """
    style = read_styles("tree") + "\n".join(style_columns())
    heads = filter(None, (describe_failure(trace), format_headline(trace)))
    parts = [f"<style>{style}</style>", *(f"<p>{escape(head)}</p>" for head in heads)]
    explanation = trace.explanation
    if explanation is not None and not explanation.is_silent:
        parts.append(f"<pre>{escape(explanation.text)}</pre>")
    if trace.notes:
        parts.append(f"<ul>{''.join(map(render_note, trace.notes))}</ul>")
    if trace.modules:
        trees = (build_tree(root, trace.module_calls) for root in trace.modules)
        parts.append(render_cells(list_headings(), "mm-head"))
        parts += render_list(trees, 0, depth or OPEN_DEPTH)
    return f'<div class="mm-report">{"".join(parts)}</div>'


def style_columns() -> Iterator[str]:
    """Yield the CSS of the columns of the tree."""
    columns = tree_columns()
    tracks = " ".join(column.track or f"{column.width}px" for column in columns)
    yield f".mm-head, .mm-row {{ grid-template-columns: {tracks}; }}"
    for number, column in enumerate(columns, 1):
        child = f"span:nth-child({number})"
        if column.is_number:
            yield f":is(.mm-head, .mm-row) > {child} {{ text-align: right; }}"
        if column.format in CELL_STYLES:
            yield f".mm-row > {child} {{ {CELL_STYLES[column.format]}; }}"


def list_headings() -> list[str]:
    """Return the headings of the columns of the tree."""
    return [c.name if c.heading is None else c.heading for c in tree_columns()]


def render_note(note: "Note") -> str:
    """Return one note as a list item."""
    text = escape(format_line(note.line) + note.text + describe_others(note))
    if not note.evidence:
        return f"<li>{text}</li>"
    why = escape(note.evidence)
    return f"<li><details><summary>{text}</summary>{why}</details></li>"


def render_list(
    lines: Iterable[TreeLine], depth: int, n_open: int, rest: str = ""
) -> Iterator[str]:
    """Yield the HTML of tree lines as a list, which is indented even without CSS.

    Single quotes: in the JSON of a notebook each double quote takes two bytes.
    """
    yield f"<ul class='mm-tree' style='--mm-depth:{depth}'>"
    for line in lines:
        yield "<li>"
        yield from render_line(line, depth, n_open)
        yield "</li>"
    if rest:
        yield f"<li>{render_cells([rest], 'mm-row')}</li>"
    yield "</ul>"


def render_line(line: TreeLine, depth: int, n_open: int) -> Iterator[str]:
    """Yield the HTML of a tree line and all lines below it."""
    row = render_cells(format_cells(line, HTML_FORMATS), "mm-row")
    if not line.children:
        yield row
        return
    yield f"<details{' open' if depth < n_open else ''}><summary>{row}</summary>"
    n_hidden = len(line.children) - MAX_SIBLINGS
    rest = f"… {n_hidden:,} more" if n_hidden > 0 else ""
    yield from render_list(line.children[:MAX_SIBLINGS], depth + 1, n_open, rest)
    yield "</details>"


def render_cells(cells: Sequence[str], kind: str) -> str:
    """Return one row up to the last text, with spaces to be readable without CSS."""
    n_shown = max((at for at, cell in enumerate(cells, 1) if cell), default=0)
    spans = " ".join(f"<span>{escape(cell)}</span>" for cell in cells[:n_shown])
    return f"<span class='{kind}'>{spans}</span>"
