"""The roofline that ``Trace.charts("roofline")`` shows, by plotly.

``static/charts/roofline.js`` draws the same in the report.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from meta_magic.cost.device_table import Peak
from meta_magic.cost.program_columns import PHASES
from meta_magic.cost.rooflines import classify_products, find_peak, find_vector_peak
from meta_magic.trace.units import format_flops
from meta_magic.view.charts import LAYOUT, PLOTLY

if TYPE_CHECKING:
    from meta_magic.cost.rooflines import Roofline
    from meta_magic.trace.trace import Trace

__all__ = ["Dot", "list_dots", "roofline_bundle"]

MOST_SIZE: Final = 60
"""Pixels across of what takes all the time; the area is the share."""

LEAST_SIZE: Final = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Dot:
    """All calls of an operator whose products are computed at one peak.

    Attributes:
        op: The operator.
        peak: Of its products, or of what it does element by element; None where that
            is not known.
        n_calls: How many there are.
        seconds: That they take.
        work: Operations: FLOPs that are needed, or those element by element.
        nbytes: Bytes that they move.
    """

    op: str
    peak: Peak | None
    n_calls: int
    seconds: float
    work: int
    nbytes: int


def roofline_bundle(trace: "Trace", device: str) -> dict[str, object] | None:
    """Return operators under a device's roofs; None where nothing is computed."""
    line = trace.cost.roofline(device)
    dots = list_dots(line)
    placed = [dot for dot in dots if dot.work and dot.nbytes]
    if not placed:
        return None
    seconds = sum(dot.seconds for dot in dots)
    first = ", ".join(f"{dot.op} {dot.seconds / seconds:.0%}" for dot in dots[:5])
    title = f"Roofline on {line.device.title}: {first} of about {seconds:.3g} s"
    return {
        PLOTLY: roofline_figure(line, placed, seconds, title),
        "text/plain": title,
    }


def list_dots(line: "Roofline") -> list[Dot]:
    """Return the operators, the longest first, without those that initialize."""
    cost = line.cost
    counted = cost.signature[cost.phase != PHASES.index("init")]
    numbers_by_key: dict[tuple[str, Peak | None], list[tuple[int, int]]] = {}
    for number, n in enumerate(np.bincount(counted).tolist()):
        if n and line.seconds_each[number]:
            one = cost.each[number]
            key = one.op, find_roof(line, number)
            numbers_by_key.setdefault(key, []).append((number, n))
    dots = [
        Dot(
            op=op,
            peak=peak,
            n_calls=sum(n for _, n in calls),
            seconds=sum(n * line.seconds_each[i] for i, n in calls),
            work=sum(
                n * (cost.each[i].flops_needed or cost.each[i].n_elementwise)
                for i, n in calls
            ),
            nbytes=sum(n * cost.each[i].nbytes for i, n in calls),
        )
        for (op, peak), calls in numbers_by_key.items()
    ]
    return sorted(dots, key=lambda dot: -dot.seconds)


def find_roof(line: "Roofline", number: int) -> Peak | None:
    """Return the peak under which the calls of a signature are."""
    one = line.cost.each[number]
    if one.flops:
        return find_peak(classify_products(one), line.device, tf32=False)
    vectors = find_vector_peak(line.device)
    return None if vectors is None else Peak(name="elementwise", flops=vectors)


def roofline_figure(
    line: "Roofline", dots: list[Dot], seconds: float, title: str
) -> Any:
    """Return dots under roofs as plotly's JSON, in plain values.

    Args:
        line: The times on a device.
        dots: Operators that compute and move something.
        seconds: Of all operators.
        title: Above it.
    """
    # Slow to import, and without types.
    from plotly import graph_objects  # type: ignore[import-untyped]  # noqa: PLC0415

    sizes = [MOST_SIZE * (dot.seconds / seconds) ** 0.5 for dot in dots]
    operators = graph_objects.Scatter(
        x=[dot.work / dot.nbytes for dot in dots],
        y=[dot.work / dot.seconds for dot in dots],
        text=[dot.op for dot in dots],
        customdata=[
            f"{dot.n_calls:,} calls, {dot.seconds / seconds:.1%} of the time"
            for dot in dots
        ],
        hovertemplate="%{text}<br>%{customdata}<extra></extra>",
        mode="markers",
        marker={"size": [max(LEAST_SIZE, size) for size in sizes], "opacity": 0.7},
        name="operators",
    )
    roofs = [
        graph_objects.Scatter(x=x, y=y, mode="lines", name=name)
        for name, x, y in list_roofs(line, dots)
    ]
    axes = {"type": "log", "exponentformat": "SI"}
    layout = LAYOUT | {
        "title": {"text": title, "font": {"size": 13}},
        "xaxis": axes | {"title": {"text": "operations for each byte"}},
        "yaxis": axes | {"title": {"text": "operations a second at best"}},
    }
    return graph_objects.Figure([*roofs, operators], layout).to_plotly_json()


def list_roofs(
    line: "Roofline", dots: list[Dot]
) -> Iterator[tuple[str, list[float], list[float]]]:
    """Yield the name of each roof, and x and y of its corners."""
    bandwidth = line.device.bandwidth
    intensities = [dot.work / dot.nbytes for dot in dots]
    low, high = min(intensities), max(intensities)
    for peak in dict.fromkeys(dot.peak for dot in dots if dot.peak is not None):
        ridge = peak.flops / bandwidth
        corners = [min(low, ridge), ridge, max(high, 10 * ridge)]
        rates = [min(peak.flops, x * bandwidth) for x in corners]
        yield f"{peak.name} {format_flops(int(peak.flops))}/s", corners, rates
