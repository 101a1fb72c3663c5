"""Plotly charts of memory over time, a roofline and modules, for ``Trace.charts()``.

A chart is a mime bundle: a figure for front ends that draw plotly's, and a line of
text. ``static/memory`` and ``static/charts/roofline.js`` draw the same in the report.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from meta_magic.cost.costs import classify_products, find_vector_peak
from meta_magic.cost.device_table import Peak
from meta_magic.cost.program_columns import PHASES
from meta_magic.trace.module_columns import split_runs
from meta_magic.trace.modules import at_any_depth, locate_tensors
from meta_magic.trace.units import format_bytes, format_flops

if TYPE_CHECKING:
    import pandas as pd

    from meta_magic.cost.costs import Roofline
    from meta_magic.cost.program_columns import Integers
    from meta_magic.trace.modules import ModuleNode
    from meta_magic.trace.trace import Trace


PLOTLY: Final = "application/vnd.plotly.v1+json"
HEIGHT: Final = 360
GREY: Final = "#888"
"""Readable on light and on dark: a figure does not know where it is shown."""

CLEAR: Final = "rgba(0,0,0,0)"
LAYOUT: Final[Mapping[str, Any]] = {
    "template": "none",
    "height": HEIGHT,
    "paper_bgcolor": CLEAR,
    "plot_bgcolor": CLEAR,
    "font": {"color": GREY},
}

N_COLUMNS: Final = 720
"""Columns of the memory chart; of each the largest and the smallest are drawn."""

COLORS: Final = (
    *("#8a8f98", "#0e9aa7", "#e8710a", "#8b5cf6"),
    *("#3b82f6", "#2e9e5b", "#b08900", "#c2418c", "#d1495b"),
)
"""Of the categories, as in ``static/memory.css``."""


def build_figure(data: Sequence[Mapping[str, Any]], layout: Mapping[str, Any]) -> Any:
    """Return a figure as plotly's JSON, in plain values."""
    # Slow to import, and without types.
    from plotly import graph_objects  # type: ignore[import-untyped]  # noqa: PLC0415

    return graph_objects.Figure([*data], {**LAYOUT, **layout}).to_plotly_json()


def memory_bundle(trace: "Trace") -> dict[str, object] | None:
    """Return memory over time as a mime bundle; None if there is none."""
    memory = trace.memory
    if memory.peak_index is None or not memory.peak_nbytes:
        return None
    call = trace.ops[memory.peak_index]
    line = f", line {call.line}" if call.line else ""
    peak = f"peak {format_bytes(memory.peak_nbytes)}: #{call.index} {call.op}{line}"
    return {
        PLOTLY: memory_figure(trace, peak),
        "text/plain": f"Memory over {len(trace.ops):,} operators: {peak}",
    }


def memory_figure(trace: "Trace", peak: str) -> Any:
    """Return areas over operators by category as plotly's JSON."""
    memory, ops = trace.memory, trace.ops
    calls = choose_calls(np.asarray(memory.live_nbytes)).tolist()
    names = {i: f"#{i} {ops[i].op}, line {ops[i].line or '-'}" for i in calls}
    areas = [
        {
            "type": "scatter",
            "x": calls,
            "y": [live[i] for i in calls],
            "name": category.replace("_", " "),
            "text": [f"{name}: {format_bytes(live[i])}" for i, name in names.items()],
            "hovertemplate": "%{text}",
            "stackgroup": "all",
            "fillcolor": color,
            "line": {"shape": "hv", "width": 0, "color": color},
        }
        for color, (category, live) in zip(
            COLORS, memory.live_by_category.items(), strict=True
        )
        if any(live)
    ]
    mark = {"x": memory.peak_index, "y": memory.peak_nbytes, "text": peak}
    layout = {
        "annotations": [mark],
        "margin": {"t": 28, "r": 4},
        "xaxis": {"title": {"text": "operator"}},
        "yaxis": {"title": {"text": "bytes alive"}, "exponentformat": "SI"},
    }
    return build_figure(areas, layout)


def choose_calls(live: "Integers") -> "Integers":
    """Return the calls to draw: all, or the largest and smallest of each column."""
    if len(live) <= 2 * N_COLUMNS:
        return np.arange(len(live))
    starts = np.arange(N_COLUMNS) * len(live) // N_COLUMNS
    columns = np.split(live, starts[1:])
    least = starts + [column.argmin() for column in columns]
    most = starts + [column.argmax() for column in columns]
    return np.unique(np.concatenate((least, most)))


def sweep_figure(table: "pd.DataFrame", metric: str = "flops") -> Any:
    """Return a plotly figure of a sweep.

    Lines for one name that varies, a heat map for two, and parallel coordinates for
    more. Rows that failed are left out.

    Args:
        table: What ``trace.sweep`` returned.
        metric: A column of it.

    Raises:
        ValueError: The table is none of a sweep, or has no such column.

    Example:
        >>> import pandas as pd
        >>> table = pd.DataFrame({"width": [8, 16], "flops": [10, 40], "error": None})
        >>> table.attrs["names"] = ["width"]
        >>> sweep_figure(table).data[0].y
        array([10, 40])
    """
    from plotly import graph_objects as go  # noqa: PLC0415

    names = table.attrs.get("names")
    if not names:
        raise ValueError("this is no table that trace.sweep() returned")
    if metric not in table.columns:
        known = ", ".join(map(str, table.columns))
        raise ValueError(f"the table has no column {metric!r}: {known}")
    rows = table[table["error"].isna()]
    title = {"title": {"text": metric}}
    if len(names) == 1:
        data = go.Scatter(x=rows[names[0]], y=rows[metric], mode="lines+markers")
        axes = {"xaxis_title": names[0], "yaxis_title": metric}
    elif len(names) == 2:  # noqa: PLR2004  the axes of a heat map
        x, y = names
        data = go.Heatmap(x=rows[x], y=rows[y], z=rows[metric], colorbar=title)
        axes = {"xaxis_title": x, "yaxis_title": y}
    else:
        shown = [{"label": name, "values": rows[name]} for name in (*names, metric)]
        line = {"color": rows[metric], "colorbar": title, "showscale": True}
        data, axes = go.Parcoords(dimensions=shown, line=line), {}
    return go.Figure([data], LAYOUT).update_layout(axes)


MOST_SIZE: Final = 60
"""Diameter in pixels of a dot that takes all the time; its area is the share."""

LEAST_SIZE: Final = 8


@dataclass(slots=True)
class Dot:
    """All calls of an operator with one peak: their number, time, operations, bytes."""

    op: str
    peak: Peak | None
    n_calls: int = 0
    seconds: float = 0.0
    work: int = 0
    nbytes: int = 0


def roofline_bundle(trace: "Trace", device: str) -> dict[str, object] | None:
    """Return a roofline as a mime bundle; None if nothing is computed."""
    line = trace.cost.roofline(device)
    dots = list_dots(line)
    placed = [dot for dot in dots if dot.work and dot.nbytes]
    if not placed:
        return None
    seconds = sum(dot.seconds for dot in dots)
    first = ", ".join(f"{dot.op} {dot.seconds / seconds:.0%}" for dot in dots[:5])
    title = f"Roofline on {line.device.title}: {first} of about {seconds:.3g} s"
    return {PLOTLY: roofline_figure(line, placed, seconds, title), "text/plain": title}


def list_dots(line: "Roofline") -> list[Dot]:
    """Return the operators without initialization, the longest first."""
    cost = line.cost
    counted = cost.signature[cost.phase != PHASES.index("init")]
    vectors = find_vector_peak(line.device)
    other = None if vectors is None else Peak(name="elementwise", flops=vectors)
    dots: dict[tuple[str, Peak | None], Dot] = {}
    for number, n in enumerate(np.bincount(counted).tolist()):
        if n and line.seconds_each[number]:
            one = cost.each[number]
            products = classify_products(one)
            roof = products.find_peak(line.device) if one.flops else other
            dot = dots.setdefault((one.op, roof), Dot(one.op, roof))
            dot.n_calls += n
            dot.seconds += n * line.seconds_each[number]
            dot.work += n * (one.flops_needed or one.n_elementwise)
            dot.nbytes += n * one.nbytes
    return sorted(dots.values(), key=lambda dot: -dot.seconds)


def roofline_figure(
    line: "Roofline", dots: list[Dot], seconds: float, title: str
) -> Any:
    """Return dots under roofs as plotly's JSON."""
    sizes = [MOST_SIZE * (dot.seconds / seconds) ** 0.5 for dot in dots]
    operators = {
        "type": "scatter",
        "x": [dot.work / dot.nbytes for dot in dots],
        "y": [dot.work / dot.seconds for dot in dots],
        "text": [dot.op for dot in dots],
        "customdata": [
            f"{dot.n_calls:,} calls, {dot.seconds / seconds:.1%} of the time"
            for dot in dots
        ],
        "hovertemplate": "%{text}<br>%{customdata}<extra></extra>",
        "mode": "markers",
        "marker": {"size": [max(LEAST_SIZE, size) for size in sizes], "opacity": 0.7},
        "name": "operators",
    }
    roofs = [
        {"type": "scatter", "x": x, "y": y, "mode": "lines", "name": name}
        for name, x, y in list_roofs(line, dots)
    ]
    axes = {"type": "log", "exponentformat": "SI"}
    layout = {
        "title": {"text": title, "font": {"size": 13}},
        "xaxis": axes | {"title": {"text": "operations for each byte"}},
        "yaxis": axes | {"title": {"text": "operations a second at best"}},
    }
    return build_figure([*roofs, operators], layout)


def list_roofs(
    line: "Roofline", dots: list[Dot]
) -> Iterator[tuple[str, list[float], list[float]]]:
    """Yield name, x and y of the corners of each roof."""
    bandwidth = line.device.bandwidth
    intensities = [dot.work / dot.nbytes for dot in dots]
    low, high = min(intensities), max(intensities)
    for peak in dict.fromkeys(dot.peak for dot in dots if dot.peak is not None):
        ridge = peak.flops / bandwidth
        corners = [min(low, ridge), ridge, max(high, 10 * ridge)]
        rates = [min(peak.flops, x * bandwidth) for x in corners]
        yield f"{peak.name} {format_flops(int(peak.flops))}/s", corners, rates


SHADES: Final = ("#8ecae6", "#ffd58a", "#a8dba8", "#f4a6a6", "#cdb4db", "#e0c9a6")
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
        colors.append(SHADES[int(levels[0]) % len(SHADES)] if levels else CLEAR)
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
        render_box(
            box,
            whole.nbytes * LEAST_SHARE,
            SHADES[index % len(SHADES)],
            "row",
        )
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
