"""The recorded processes of a world, one strip above the other: ``Ranks.show()``.

A strip is a static picture: the bytes alive after each operator, and a tick for each
collective. All strips have the same scales. Read :func:`render_ranks` first.
"""

from collections.abc import Iterator
from html import escape
from typing import TYPE_CHECKING

import numpy as np

from meta_magic.trace.units import format_bytes
from meta_magic.trace.world import Sent, World, describe_ranks
from meta_magic.view.scripts import read_styles

if TYPE_CHECKING:
    from meta_magic.ranks.recorded_ranks import Ranks
    from meta_magic.trace.trace import Trace

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
