"""The chart of memory over time that ``Trace.charts("memory")`` shows, by plotly."""

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from meta_magic.trace.units import format_bytes
from meta_magic.view.charts import LAYOUT, PLOTLY

if TYPE_CHECKING:
    from meta_magic.cost.program_columns import Integers
    from meta_magic.trace.trace import Trace

__all__ = ["memory_bundle"]

N_COLUMNS: Final = 720
"""Stretches of calls of which the most and the least bytes are drawn."""

COLORS: Final = (
    *("#8a8f98", "#0e9aa7", "#e8710a", "#8b5cf6"),
    *("#3b82f6", "#2e9e5b", "#b08900", "#c2418c"),
)
"""Of the categories, as in ``static/memory.css``."""


def memory_bundle(trace: "Trace") -> dict[str, object] | None:
    """Return memory over time as a mime bundle; None where nothing takes any."""
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
    """Return areas over operators by category as plotly's JSON, in plain values."""
    # Slow to import, and without types.
    from plotly import graph_objects  # type: ignore[import-untyped]  # noqa: PLC0415

    memory, ops = trace.memory, trace.ops
    calls = choose_calls(np.asarray(memory.live_nbytes)).tolist()
    names = {i: f"#{i} {ops[i].op}, line {ops[i].line or '-'}" for i in calls}
    areas = [
        graph_objects.Scatter(
            x=calls,
            y=[live[i] for i in calls],
            name=category.replace("_", " "),
            text=[f"{name}: {format_bytes(live[i])}" for i, name in names.items()],
            hovertemplate="%{text}",
            stackgroup="all",
            fillcolor=color,
            line={"shape": "hv", "width": 0, "color": color},
        )
        for color, (category, live) in zip(
            COLORS, memory.live_by_category.items(), strict=True
        )
        if any(live)
    ]
    mark = {"x": memory.peak_index, "y": memory.peak_nbytes, "text": peak}
    layout = LAYOUT | {
        "annotations": [mark],
        "margin": {"t": 28, "r": 4},
        "xaxis": {"title": {"text": "operator"}},
        "yaxis": {"title": {"text": "bytes alive"}, "exponentformat": "SI"},
    }
    return graph_objects.Figure(areas, layout).to_plotly_json()


def choose_calls(live: "Integers") -> "Integers":
    """Return the calls to draw: all, or of each column the one of most and of least."""
    if len(live) <= 2 * N_COLUMNS:
        return np.arange(len(live))
    starts = np.arange(N_COLUMNS) * len(live) // N_COLUMNS
    columns = np.split(live, starts[1:])
    least = starts + [column.argmin() for column in columns]
    most = starts + [column.argmax() for column in columns]
    return np.unique(np.concatenate((least, most)))
