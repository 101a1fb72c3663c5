"""A cost as text."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from meta_magic.trace.units import format_bytes, format_count, format_flops

if TYPE_CHECKING:
    from meta_magic.cost.call_work import Work
    from meta_magic.cost.costs import Cost
    from meta_magic.cost.rooflines import Roofline

__all__ = ["format_cost", "format_roofline"]


def format_cost(cost: "Cost") -> str:
    """Return what ``print(trace.cost)`` shows: the total, phases, what is not known."""
    return "\n".join(list_lines(cost))


def list_lines(cost: "Cost") -> Iterator[str]:
    """Yield the lines of the text."""
    yield format_work(cost.total)
    for phase, work in cost.by_phase.items():
        yield f"{phase}: {format_work(work)}"
    for unknown in cost.unknown:
        times = f"{unknown.n_calls:,} call{'' if unknown.n_calls == 1 else 's'}"
        yield f"no formula: {unknown.op}, {times}, {unknown.share:.1%} of the bytes"


def format_work(work: "Work") -> str:
    """Return on one line what calls compute and move."""
    skipped = work.flops - work.flops_needed
    masked = f" ({format_flops(skipped)} of them masked)" if skipped else ""
    return " · ".join(
        (
            f"{format_flops(work.flops)}{masked}",
            f"{format_count(work.n_elementwise)} operations element by element",
            f"{format_bytes(work.nbytes_read)} read",
            f"{format_bytes(work.nbytes_written)} written",
        )
    )


def format_roofline(roofline: "Roofline") -> str:
    """Return what ``print`` shows of a roofline: total, phases, what was assumed."""
    device, waited = roofline.device, roofline.memory_share
    phases = roofline.by_phase.items()
    return "\n".join(
        (
            f"about {roofline.seconds:.3g} s on {device.title}, by its peaks",
            *(f"{phase}: {seconds:.3g} s" for phase, seconds in phases),
            f"bound by its memory: {waited:.0%} of the time",
            *roofline.notes,
        )
    )
