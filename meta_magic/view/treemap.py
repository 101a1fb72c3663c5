"""The treemap of parameter bytes for ``Trace.charts()``: plotly's figure, and HTML.

The HTML is for front ends without plotly. Equal siblings share a box. Read
:func:`treemap_bundle` first.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any, Final

from meta_magic.trace.module_columns import split_runs
from meta_magic.trace.modules import at_any_depth, locate_tensors
from meta_magic.trace.units import format_bytes
from meta_magic.view.charts import CLEAR, GREY, HEIGHT, PLOTLY, build_figure

if TYPE_CHECKING:
    from meta_magic.trace.modules import ModuleNode
    from meta_magic.trace.trace import Trace


COLORS: Final = ("#8ecae6", "#ffd58a", "#a8dba8", "#f4a6a6", "#cdb4db", "#e0c9a6")
"""Of the boxes; dark text is readable on each of them."""

DARK: Final = "#222"
DEPTH: Final = 5
"""Levels that plotly shows at once, below those with a single child."""

LEAST_SHARE: Final = 1 / 4000
"""Share of all bytes below which the HTML shows a module without its children."""

STYLE: Final = (
    f"display:flex;width:100%;max-width:720px;height:{HEIGHT}px;overflow:hidden;"
    f"color:{DARK};font:11px system-ui,sans-serif"
)
LABEL: Final = "white-space:nowrap;text-overflow:ellipsis;text-indent:4px"


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
    own: Counter[int] = Counter()  # by module
    for node, tensor in locate_tensors(trace.modules):
        own[id(node)] += tensor.nbytes if tensor.kind == "parameter" else 0
    boxes = [box for root in trace.modules if (box := build_box([root], own)).nbytes]
    boxes.sort(key=lambda box: -box.nbytes)
    if not boxes:
        return None
    if len(boxes) == 1:
        return boxes[0]
    nbytes = sum(box.nbytes for box in boxes)
    return Box(label="all modules", nbytes=nbytes, children=tuple(boxes))


def build_box(run: Sequence["ModuleNode"], own: Mapping[int, int]) -> Box:
    """Return the box of a module, or of a run of equal modules.

    Modules of a run have equal children, so that these can be paired. ``own`` are the
    bytes that each module has beside those in it, by its ``id``; what several trees
    have counts in the first.
    """
    runs = zip(*(list(split_runs(node.children)) for node in run), strict=True)
    children = [
        build_box([node for part in parts for node in part], own) for parts in runs
    ]
    children = [child for child in children if child.nbytes]
    beside = sum(own[id(node)] for node in run)
    nbytes = beside + sum(child.nbytes for child in children)
    if beside and children:
        children.append(Box(label="its own parameters", nbytes=beside))
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
    colors = []
    for number, _, _ in rows:
        levels = number.split(".")[n_above + 1 :]  # none for a box around all others
        colors.append(COLORS[int(levels[0]) % len(COLORS)] if levels else CLEAR)
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
        "marker": {"colors": colors, "depthfade": False, "pad": {"t": 18}},
        "root": {"color": CLEAR},
        "textfont": {"color": [GREY if color == CLEAR else DARK for color in colors]},
    }
    return build_figure([treemap], {"margin": {"l": 4, "r": 4, "t": 28, "b": 4}})


def find_top(whole: Box) -> tuple[Box, int]:
    """Return the first box without a single child, and its depth."""
    n_above = 0
    while len(whole.children) == 1:
        whole, n_above = whole.children[0], n_above + 1
    return whole, n_above


def walk(box: Box, number: str, parent: str) -> Iterator[tuple[str, str, Box]]:
    """Yield all boxes with their number and that of their parent ("" for none)."""
    yield number, parent, box
    for index, child in enumerate(box.children):
        yield from walk(child, f"{number}.{index}", number)


def render_treemap(whole: Box) -> str:
    """Return a treemap as HTML: areas of the boxes are their bytes."""
    title = escape(f"Parameter bytes by module: {whole.title}")
    top, _ = find_top(whole)
    boxes = "".join(
        render_box(box, whole.nbytes * LEAST_SHARE, COLORS[index % len(COLORS)], "row")
        for index, box in enumerate(top.children or (top,))
    )
    return (
        f'<div role="img" aria-label="{title}" style="{STYLE}">{boxes}</div>'
        f'<p style="margin:2px 0;font:12px system-ui,sans-serif">{title}</p>'
    )


def render_box(box: Box, least: float, color: str, direction: str) -> str:
    """Return the HTML of a box in a row or column; small ones have no children."""
    across = "column" if direction == "row" else "row"
    inner = escape(box.title)
    style = f"box-shadow:inset 0 0 0 1px #fff;background:{color};{LABEL}"
    if box.children and box.nbytes >= least:
        boxes = (render_box(child, least, color, across) for child in box.children)
        inner, style = "".join(boxes), f"display:flex;flex-direction:{across}"
    return (
        f'<div title="{escape(box.title)}" style="flex:{box.nbytes} 0 0;min-width:0;'
        f'min-height:0;overflow:hidden;{style}">{inner}</div>'
    )
