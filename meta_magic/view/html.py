"""HTML without scripts: the module trees of a report, and the strips of ranks.

An untrusted notebook, GitHub and ``Trace._repr_html_`` show the trees. Read
:func:`render_html` first; :func:`render_ranks` makes ``Ranks.show()``: a static picture
of each rank, with the bytes alive after each operator, and a tick for each collective.
All ranks have the same scales.
"""

from collections.abc import Iterable, Iterator, Sequence
from html import escape
from typing import TYPE_CHECKING, Final

import numpy as np

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
from meta_magic.trace.units import format_bytes, format_line
from meta_magic.trace.world import Sent, World, describe_ranks
from meta_magic.view.scripts import read_styles

if TYPE_CHECKING:
    from meta_magic.ranks.recorded_ranks import Ranks
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


WIDTH, HEIGHT, LABEL = 720, 56, 76
"""Widths and heights in pixels of a strip, its bytes and its name."""

WITHIN, ACROSS = 8, 16
"""Heights in pixels of a tick within a node and between nodes."""


def render_ranks(ranks: "Ranks") -> str:
    """Return a strip for each recorded rank; below them what hangs, and advice."""
    n_ops = max((len(trace.ops) for trace in ranks.values()), default=0)
    most = max((trace.memory.peak_nbytes for trace in ranks.values()), default=0)
    kinds = {sent.kind: None for trace in ranks.values() for sent in trace.sent}
    keys = "".join(
        f"<span><i class='mm-sent-{kind}'></i>{kind}</span>" for kind in kinds
    )
    strips = "".join(
        draw_strip(rank, trace, max(1, n_ops), max(1, most))
        for rank, trace in ranks.items()
    )
    found = (*ranks.mismatches, *ranks.advice)
    words = "".join(f"<li>{escape(str(one))}</li>" for one in found)
    return (
        f"<style>{read_styles('ranks')}</style><div class='mm-charts mm-ranks'>"
        f"{strips}<div class='mm-groups'>{keys}</div><ul>{words}</ul></div>"
    )


def draw_strip(rank: int, trace: "Trace", n_ops: int, most: int) -> str:
    """Return the picture of a rank: of ``n_ops`` operators, up to ``most`` bytes."""
    area = " ".join(f"{x:.1f},{y:.1f}" for x, y in trace_bytes(trace, n_ops, most))
    peak = format_bytes(trace.memory.peak_nbytes)
    words = f"rank {rank}: {peak} at the peak, {len(trace.sent)} collectives"
    ticks = "".join(draw_ticks(trace, n_ops))
    ended = f"<text x='{LABEL}' y='12'>{escape(trace.error or '')}</text>"
    return (
        f"<svg viewBox='0 0 {LABEL + WIDTH} {HEIGHT + ACROSS + 8}' role='img' "
        f"aria-label='{words}'><text x='0' y='24'>rank {rank}</text>"
        f"<text x='0' y='40'>{peak}</text><polygon points='{area}'/>{ticks}"
        f"{ended if trace.error else ''}</svg>"
    )


def trace_bytes(trace: "Trace", n_ops: int, most: int) -> Iterator[tuple[float, float]]:
    """Yield the corners of the area: the most bytes of each column of pixels."""
    live = np.asarray(trace.memory.live_nbytes, np.float64)
    column = np.arange(len(live)) * WIDTH // n_ops
    highest = np.zeros(WIDTH)
    np.maximum.at(highest, column, live)
    used = np.unique(column)
    ends = [*used[1:], len(live) * WIDTH / n_ops]
    yield LABEL, HEIGHT
    for x, end in zip(used, ends, strict=True):
        y = HEIGHT - (HEIGHT - 2) * highest[x] / most
        yield LABEL + float(x), y
        yield LABEL + float(end), y
    yield LABEL + len(live) * WIDTH / n_ops, HEIGHT


def draw_ticks(trace: "Trace", n_ops: int) -> Iterator[str]:
    """Yield the ticks of collectives; one tick for those of one kind at a pixel."""
    world = trace.world or World(1)
    ticks: dict[tuple[float, str, int], list[Sent]] = {}
    for sent in trace.sent:
        x = round(LABEL + (sent.index + 0.5) * WIDTH / n_ops, 1)
        n_nodes = world.count_nodes(sent.ranks, sent.peer)
        height = ACROSS if n_nodes > 1 else WITHIN
        ticks.setdefault((x, sent.kind, height), []).append(sent)
    for (x, kind, height), found in ticks.items():
        more = f", and {len(found) - 1} more" if found[1:] else ""
        words = escape(f"{describe_sent(found[0])}{more}")
        path = f"M{x} {HEIGHT + 3}v{height}"
        yield f"<path class='mm-sent-{kind}' d='{path}'><title>{words}</title></path>"


def describe_sent(sent: Sent) -> str:
    """Return a collective as text."""
    to = f"ranks {describe_ranks(sent.ranks)}"
    if sent.peer is not None:
        to = f"{'from' if sent.kind == 'recv' else 'to'} rank {sent.peer}"
    size = f"{format_bytes(sent.nbytes)} {sent.dtype}"
    line = f"line {sent.line}" if sent.line else ""
    module = f"in {sent.module}" if sent.module else ""
    parts = (sent.kind, size, sent.reduce, to, module, sent.phase, line)
    return " · ".join(filter(None, parts))
