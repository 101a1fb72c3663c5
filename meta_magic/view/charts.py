"""Charts of a trace, and the only file that knows of plotly.

A chart is a mime bundle: a figure for the front ends that draw plotly's, the same as
an inline SVG without any script for the others, and a line of text.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any, Final

from meta_magic.trace.module_columns import split_runs
from meta_magic.trace.modules import at_any_depth
from meta_magic.trace.units import format_bytes

if TYPE_CHECKING:
    from meta_magic.trace.modules import ModuleNode
    from meta_magic.trace.trace import Trace

__all__ = ["LAYOUT", "PLOTLY", "treemap_bundle", "treemap_html"]

PLOTLY: Final = "application/vnd.plotly.v1+json"
WIDTH: Final = 720
HEIGHT: Final = 360
GREY: Final = "#888"
"""Readable on light and on dark: a figure does not know where it is shown."""

COLORS: Final = ("#8ecae6", "#ffd58a", "#a8dba8", "#f4a6a6", "#cdb4db", "#e0c9a6")
"""Of the boxes; dark text is readable on each, whatever is behind."""

DARK: Final = "#222"
LIGHT: Final = "#fff"
CLEAR: Final = "rgba(0,0,0,0)"
LAYOUT: Final = {
    "template": "none",
    "height": HEIGHT,
    "paper_bgcolor": CLEAR,
    "plot_bgcolor": CLEAR,
    "font": {"color": GREY},
}

DEPTH: Final = 5
"""Levels that plotly shows at once, below those that hold everything."""

LEAST_AREA: Final = 60
"""Square pixels below which a module is drawn as one box, without what is in it."""

CHARACTER: Final = (7.6, 15)
"""Width and height that a character takes, in pixels."""

LEAST_TEXT: Final = 4
"""Characters below which a label says nothing."""

Rectangle = tuple[float, float, float, float]
"""Left, top, width and height."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Box:
    """A module, or a run of identical ones, by the bytes of its parameters.

    Attributes:
        label: As in the folded tree: ``name: Class``, or ``0-79: 80 x Class``.
        nbytes: Bytes of all parameters below, tied ones counted once.
        children: The boxes in it, which have just as many bytes together; largest
            first. Parameters of its own are a box, too, if there are others.
        module: Number of the (first) module, counting all of the trace, parents
            first; None for what is no module.
    """

    label: str
    nbytes: int
    children: tuple["Box", ...] = ()
    module: int | None = None

    @property
    def title(self) -> str:
        """What is said of it."""
        return f"{self.label} — {format_bytes(self.nbytes)}"


@at_any_depth
def treemap_bundle(trace: "Trace") -> dict[str, object] | None:
    """Return parameter bytes by module as a mime bundle; None without parameters."""
    whole = build_whole(trace)
    if whole is None:
        return None
    return {
        PLOTLY: treemap_figure(whole),
        "text/html": render_treemap(whole),
        "text/plain": f"Parameter bytes by module: {whole.title}",
    }


@at_any_depth
def treemap_html(trace: "Trace") -> str:
    """Return parameter bytes by module as an SVG, or "" without parameters."""
    whole = build_whole(trace)
    return "" if whole is None else render_treemap(whole)


def build_whole(trace: "Trace") -> Box | None:
    """Return the box that holds all parameters of a trace; None if it has none."""
    nodes = (node for root in trace.modules for node in root.walk())
    numbers = {id(node): number for number, node in enumerate(nodes)}
    roots = [root for root in trace.modules if root.parameter_nbytes]
    boxes = sorted(
        (build_box([root], numbers) for root in roots), key=lambda box: -box.nbytes
    )
    if not boxes:
        return None
    if len(boxes) == 1:
        return boxes[0]
    nbytes = sum(box.nbytes for box in boxes)
    return Box(label="all modules", nbytes=nbytes, children=tuple(boxes))


def build_box(run: Sequence["ModuleNode"], numbers: Mapping[int, int]) -> Box:
    """Return the box of a module, or of all that stand at its place in a run."""
    # Modules of a run are built alike, and so fold alike.
    runs = zip(*(list(split_runs(node.children)) for node in run), strict=True)
    children = [
        build_box([node for part in parts for node in part], numbers) for parts in runs
    ]
    nbytes = sum(node.parameter_nbytes for node in run)
    own = nbytes - sum(child.nbytes for child in children)
    if own and own < nbytes:
        children.append(Box(label="its own parameters", nbytes=own))
    children = [child for child in children if child.nbytes]
    children.sort(key=lambda child: -child.nbytes)
    return Box(
        label=name_run(run),
        nbytes=nbytes,
        children=tuple(children),
        module=numbers[id(run[0])],
    )


def name_run(run: Sequence["ModuleNode"]) -> str:
    """Return the name and the class; names that differ from first to last."""
    first, last = run[0], run[-1]
    name = first.name if first.name == last.name else f"{first.name}-{last.name}"
    count = f"{len(run)} x " if len(run) > 1 else ""
    class_name = first.class_name.rpartition(".")[2]
    return f"{name}: {count}{class_name}" if name else f"{count}{class_name}"


def treemap_figure(whole: Box) -> Any:
    """Return a treemap as plotly's JSON, in plain values."""
    # Slow to import, and without types.
    from plotly import graph_objects  # type: ignore[import-untyped]  # noqa: PLC0415

    _, n_above = find_top(whole)
    rows = [*walk(whole, "0", "")]
    colors = [pick_color(number, n_above) for number, _, _ in rows]
    treemap = graph_objects.Treemap(
        ids=[number for number, _, _ in rows],
        parents=[parent for _, parent, _ in rows],
        labels=[escape(box.label) for *_, box in rows],  # plotly would read tags
        values=[box.nbytes for *_, box in rows],
        text=[format_bytes(box.nbytes) for *_, box in rows],
        branchvalues="total",
        maxdepth=n_above + DEPTH,
        textinfo="label+text",
        hovertemplate="%{label}<br>%{text}<extra></extra>",
        marker={
            "colors": colors,
            "depthfade": False,
            "line": {"color": [c if c == CLEAR else LIGHT for c in colors], "width": 1},
            "pad": {"t": 18},
        },
        root={"color": CLEAR},
        textfont={"color": [GREY if color == CLEAR else DARK for color in colors]},
    )
    layout = LAYOUT | {"margin": {"l": 4, "r": 4, "t": 28, "b": 4}}
    return graph_objects.Figure(treemap, layout).to_plotly_json()


def find_top(whole: Box) -> tuple[Box, int]:
    """Return the first box that holds several, or none, and how many are around it."""
    n_above = 0
    while len(whole.children) == 1:
        whole, n_above = whole.children[0], n_above + 1
    return whole, n_above


def pick_color(number: str, n_above: int) -> str:
    """Return the colour of a box; what holds everything has none."""
    levels = number.split(".")[n_above + 1 :]
    return COLORS[int(levels[0]) % len(COLORS)] if levels else CLEAR


def walk(box: Box, number: str, parent: str) -> Iterator[tuple[str, str, Box]]:
    """Yield a number, that of the parent ("" for none) and the box, for all boxes."""
    yield number, parent, box
    for index, child in enumerate(box.children):
        yield from walk(child, f"{number}.{index}", number)


def render_treemap(whole: Box) -> str:
    """Return a treemap as inline SVG: areas of the boxes are their bytes."""
    title = escape(f"Parameter bytes by module: {whole.title}")
    rectangle = (0.0, 0.0, float(WIDTH), float(HEIGHT))
    top, _ = find_top(whole)
    tops = top.children or (top,)
    boxes = "".join(
        part
        for index, (box, at) in enumerate(place_boxes(tops, rectangle))
        for part in render_box(box, at, COLORS[index % len(COLORS)], [box.label])
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" aria-label="{title}" '
        f'viewBox="0 0 {WIDTH} {HEIGHT}" width="100%" '
        f'style="display:block;max-width:{WIDTH}px" font-size="11" '
        f'font-family="system-ui, sans-serif">{boxes}'
        f'</svg><p style="margin:2px 0;font:12px system-ui,sans-serif">{title}</p>'
    )


def render_box(box: Box, at: Rectangle, color: str, path: list[str]) -> Iterator[str]:
    """Yield the SVG of a box, or of those in it if there is room for them."""
    left, top, width, height = at
    if box.children and width * height >= LEAST_AREA:
        for child, inner in place_boxes(box.children, at):
            yield from render_box(child, inner, color, [*path, child.label])
        return
    title = escape(f"{' / '.join(path)} — {format_bytes(box.nbytes)}")
    group = "<g>" if box.module is None else f'<g data-module="{box.module}">'
    yield (
        f'{group}<title>{title}</title><rect x="{left:.3f}" y="{top:.3f}" '
        f'width="{width:.3f}" height="{height:.3f}" fill="{color}" '
        f'stroke="{LIGHT}" stroke-width="1"/>'
    )
    lines = fit_text([*path[-2:], format_bytes(box.nbytes)], width - 8, height - 6)
    for index, line in enumerate(lines):
        y = top + CHARACTER[1] * (index + 1)
        start = f'<text x="{left + 4:.1f}" y="{y:.1f}" fill="{DARK}">'
        yield f"{start}{escape(line)}</text>"
    yield "</g>"


def fit_text(lines: Sequence[str], width: float, height: float) -> list[str]:
    """Return as many lines as there is room for, the last ones first, each cut."""
    n_characters = int(width / CHARACTER[0])
    n_lines = int(height / CHARACTER[1])
    if n_characters < LEAST_TEXT or n_lines < 1:
        return []
    kept = lines[-2:][:n_lines] if n_lines < len(lines) else lines
    return [
        line if len(line) <= n_characters else f"{line[: n_characters - 1]}…"
        for line in kept
    ]


def place_boxes(
    boxes: Sequence[Box], rectangle: Rectangle
) -> Iterator[tuple[Box, Rectangle]]:
    """Yield each box with its part of a rectangle: by area, as square as can be.

    Args:
        boxes: The largest first.
        rectangle: What they fill.

    Source:
        Bruls, Huizing and van Wijk, "Squarified Treemaps", 2000.
    """
    rest = list(boxes)
    while rest:
        left, top, width, height = rectangle
        scale = width * height / sum(box.nbytes for box in rest)
        areas = [box.nbytes * scale for box in rest]
        side = min(width, height)
        n = 1
        while n < len(rest) and worst_ratio(areas[: n + 1], side) <= worst_ratio(
            areas[:n], side
        ):
            n += 1
        thickness = sum(areas[:n]) / side
        offset = 0.0
        for box, area in zip(rest[:n], areas[:n], strict=True):
            length = area / thickness
            if width >= height:
                yield box, (left, top + offset, thickness, length)
            else:
                yield box, (left + offset, top, length, thickness)
            offset += length
        if width >= height:
            rectangle = (left + thickness, top, width - thickness, height)
        else:
            rectangle = (left, top + thickness, width, height - thickness)
        del rest[:n]


def worst_ratio(areas: Sequence[float], side: float) -> float:
    """Return how far from square the worst rectangle of a strip is; 1 if it is one."""
    thickness = sum(areas) / side
    return max(
        max(thickness**2 / area, area / thickness**2)
        for area in (max(areas), min(areas))
    )
