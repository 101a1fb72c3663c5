"""The treemap of parameter bytes for ``Trace.charts()``: plotly's figure, and an SVG.

The SVG is for front ends without plotly. Equal siblings share a box. Read
:func:`treemap_bundle` first.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any, Final

from meta_magic.trace.module_columns import split_runs
from meta_magic.trace.modules import at_any_depth
from meta_magic.trace.units import format_bytes
from meta_magic.view.charts import CLEAR, GREY, HEIGHT, PLOTLY, build_figure

if TYPE_CHECKING:
    from meta_magic.trace.modules import ModuleNode
    from meta_magic.trace.trace import Trace


WIDTH: Final = 720
COLORS: Final = ("#8ecae6", "#ffd58a", "#a8dba8", "#f4a6a6", "#cdb4db", "#e0c9a6")
"""Of the boxes; dark text is readable on each of them."""

DARK: Final = "#222"
LIGHT: Final = "#fff"
DEPTH: Final = 5
"""Levels that plotly shows at once, below those with a single child."""

LEAST_AREA: Final = 60
"""Square pixels below which a module is drawn without its children."""

CHARACTER: Final = (7.6, 15)
"""Width and height that a character takes, in pixels."""

LEAST_TEXT: Final = 4
"""A label with fewer characters is left out."""

Rectangle = tuple[float, float, float, float]
"""Left, top, width and height."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Box:
    """A module, or a run of identical ones, by the bytes of its parameters.

    Attributes:
        label: As in the folded tree: ``name: Class``, or ``0-79: 80 x Class``.
        nbytes: Bytes of all parameters below, tied ones counted once.
        children: The boxes in it, whose bytes add up to ``nbytes``; largest first.
            Parameters of its own are a box, too, if there are others.
    """

    label: str
    nbytes: int
    children: tuple["Box", ...] = ()

    @property
    def title(self) -> str:
        """Its label with its bytes."""
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


def build_whole(trace: "Trace") -> Box | None:
    """Return the box of all parameters of a trace; None if it has none."""
    roots = [root for root in trace.modules if root.parameter_nbytes]
    boxes = sorted((build_box([root]) for root in roots), key=lambda box: -box.nbytes)
    if not boxes:
        return None
    if len(boxes) == 1:
        return boxes[0]
    nbytes = sum(box.nbytes for box in boxes)
    return Box(label="all modules", nbytes=nbytes, children=tuple(boxes))


def build_box(run: Sequence["ModuleNode"]) -> Box:
    """Return the box of a module, or of a run of equal modules.

    Modules of a run have equal children, so that these can be paired.
    """
    runs = zip(*(list(split_runs(node.children)) for node in run), strict=True)
    children = [build_box([node for part in parts for node in part]) for parts in runs]
    nbytes = sum(node.parameter_nbytes for node in run)
    own = nbytes - sum(child.nbytes for child in children)
    if own and own < nbytes:
        children.append(Box(label="its own parameters", nbytes=own))
    children = [child for child in children if child.nbytes]
    children.sort(key=lambda child: -child.nbytes)
    return Box(label=name_run(run), nbytes=nbytes, children=tuple(children))


def name_run(run: Sequence["ModuleNode"]) -> str:
    """Return name and class, of a run the first and the last name."""
    first, last = run[0], run[-1]
    name = first.name if first.name == last.name else f"{first.name}-{last.name}"
    count = f"{len(run)} x " if len(run) > 1 else ""
    class_name = first.class_name.rpartition(".")[2]
    return f"{name}: {count}{class_name}" if name else f"{count}{class_name}"


def treemap_figure(whole: Box) -> Any:
    """Return a treemap as plotly's JSON."""
    _, n_above = find_top(whole)
    rows = [*walk(whole, "0", "")]
    colors = [pick_color(number, n_above) for number, _, _ in rows]
    treemap = {
        "type": "treemap",
        "ids": [number for number, _, _ in rows],
        "parents": [parent for _, parent, _ in rows],
        "labels": [escape(box.label) for *_, box in rows],  # plotly would read tags
        "values": [box.nbytes for *_, box in rows],
        "text": [format_bytes(box.nbytes) for *_, box in rows],
        "branchvalues": "total",
        "maxdepth": n_above + DEPTH,
        "textinfo": "label+text",
        "hovertemplate": "%{label}<br>%{text}<extra></extra>",
        "marker": {
            "colors": colors,
            "depthfade": False,
            "line": {"color": [c if c == CLEAR else LIGHT for c in colors], "width": 1},
            "pad": {"t": 18},
        },
        "root": {"color": CLEAR},
        "textfont": {"color": [GREY if color == CLEAR else DARK for color in colors]},
    }
    layout = {"margin": {"l": 4, "r": 4, "t": 28, "b": 4}}
    return build_figure([treemap], layout)


def find_top(whole: Box) -> tuple[Box, int]:
    """Return the first box without a single child, and its depth."""
    n_above = 0
    while len(whole.children) == 1:
        whole, n_above = whole.children[0], n_above + 1
    return whole, n_above


def pick_color(number: str, n_above: int) -> str:
    """Return the colour of a box; those around all others have none."""
    levels = number.split(".")[n_above + 1 :]
    return COLORS[int(levels[0]) % len(COLORS)] if levels else CLEAR


def walk(box: Box, number: str, parent: str) -> Iterator[tuple[str, str, Box]]:
    """Yield all boxes with their number and that of their parent ("" for none)."""
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
        for index, (box, at) in enumerate(arrange_boxes(tops, rectangle))
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
    """Yield the SVG of a box, or of its children if there is room for them."""
    left, top, width, height = at
    if box.children and width * height >= LEAST_AREA:
        for child, inner in arrange_boxes(box.children, at):
            yield from render_box(child, inner, color, [*path, child.label])
        return
    title = escape(f"{' / '.join(path)} — {format_bytes(box.nbytes)}")
    yield (
        f'<g><title>{title}</title><rect x="{left:.3f}" y="{top:.3f}" '
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
    """Return the last lines that there is room for, each cut to the width."""
    n_characters = int(width / CHARACTER[0])
    n_lines = int(height / CHARACTER[1])
    if n_characters < LEAST_TEXT or n_lines < 1:
        return []
    kept = lines[-2:][:n_lines] if n_lines < len(lines) else lines
    return [
        line if len(line) <= n_characters else f"{line[: n_characters - 1]}…"
        for line in kept
    ]


def arrange_boxes(
    boxes: Sequence[Box], rectangle: Rectangle
) -> Iterator[tuple[Box, Rectangle]]:
    """Yield each box with its part of a rectangle: by area, as square as possible.

    Args:
        boxes: The largest first.
        rectangle: They fill it.

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
    """Return the largest aspect ratio in a strip of rectangles; 1 for squares."""
    thickness = sum(areas) / side
    return max(
        max(thickness**2 / area, area / thickness**2)
        for area in (max(areas), min(areas))
    )
