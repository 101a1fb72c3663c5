"""What a materialization will do, before it does it: how much, for what, how long."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import torch

from meta_magic.materializing.report import WITH_IT
from meta_magic.materializing.targets import Target
from meta_magic.replaying.execution import Execution
from meta_magic.replaying.part import Part
from meta_magic.replaying.rates import count_products, estimate_seconds, measure_rates
from meta_magic.replaying.steps import StepKind
from meta_magic.replaying.uses import USES, Uses, find_phases
from meta_magic.trace.signature import Phase
from meta_magic.trace.units import format_flops

__all__ = ["Forecast", "forecast_replays", "format_seconds"]

MAX_NAMES: Final = 3

WORDS: Final[Mapping[Phase, tuple[str, str]]] = {
    "forward": ("forward", "forwards"),
    "backward": ("backward pass", "backward passes"),
    "optimizer": ("optimizer step", "optimizer steps"),
}

DRAWN_LATER: Final = "random numbers that are drawn after it"

AS_MANY: Final = 90
"""Seconds or minutes that are not yet said in the next unit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """What :func:`meta_magic.materialize` would do.

    Attributes:
        n_operators: Recorded operators that would run again.
        uses: (``forward``, ``backward`` or ``optimizer``, how many of these) of what
            would be computed again after the construction; () if that alone.
        needed_by: (what they are, a few of their names, how many) of the tensors that
            this is for, such as ``("buffers of BatchNorm2d", ("running_mean",), 2)``,
            without names of what is used with the module; () if it is for what is
            drawn after it, as many numbers as its values say.
        flops: FLOPs of the matrix products and convolutions among these.
        seconds: About how long all would take, by what the device did in a moment.
    """

    n_operators: int = 0
    uses: tuple[tuple[Phase, int], ...] = ()
    needed_by: tuple[tuple[str, tuple[str, ...], int], ...] = ()
    flops: int = 0
    seconds: float = 0.0

    def join(self, other: "Forecast") -> "Forecast":
        """Return what both would do together."""
        uses = Counter(dict(self.uses)) + Counter(dict(other.uses))
        return Forecast(
            n_operators=self.n_operators + other.n_operators,
            uses=tuple(uses.items()),
            needed_by=self.needed_by + other.needed_by,
            flops=self.flops + other.flops,
            seconds=self.seconds + other.seconds,
        )

    def __str__(self) -> str:
        """Return it as one line; "" if nothing is replayed."""
        time = format_seconds(self.seconds)
        if not self.uses:
            return f"{self.n_operators:,} operators, {time}" if self.n_operators else ""
        counted = [f"{n:,} {WORDS[use][n != 1]}" for use, n in self.uses]
        cost = f"{format_flops(self.flops)}, {time}" if self.flops else time
        return f"replays {join(counted)} ({cost}), for {self._name_needing()}"

    def _name_needing(self) -> str:
        """Return what it is for, in words."""
        if not self.needed_by:
            return DRAWN_LATER
        return "; ".join(
            f"{n:,} {kind} ({', '.join(names)}{', …' if n > len(names) else ''})"
            if names
            else f"{n:,} {kind}"
            for kind, names, n in self.needed_by
        )


def forecast_replays(
    replays: Sequence[tuple[Execution, Mapping[int, Target]]],
    device: torch.device,
) -> Forecast:
    """Return what some replays would do.

    Args:
        replays: The replays, with their targets by storage.
        device: Where.
    """
    rates = measure_rates(device)
    uses: Counter[Phase] = Counter()
    needing: list[Target] = []
    for replay, targets in replays:
        for part in replay.parts:
            uses += count_uses(part)
        used = replay.follow(find_phases)[id(replay.parts[-1])]
        needing += (target for number, target in targets.items() if used.get(number))
    steps = [step for replay, _ in replays for step in replay.steps]
    run = [step for step in steps if step.kind != StepKind.ALLOCATE]
    return Forecast(
        n_operators=len(steps),
        uses=tuple((use, uses[use]) for use in USES if uses[use]),
        needed_by=tuple(group_needing(needing)),
        flops=sum(count_products(step.call.signature)[0] for step in run),
        seconds=sum(estimate_seconds(step, rates, device) for step in steps),
    )


def count_uses(part: Part) -> Counter[Phase]:
    """Return how many uses of modules a part of a replay computes again."""
    found = Uses(part.plan.recorded)
    calls: set[int | None] = set()
    n_by_phase: Counter[Phase] = Counter()
    last: Phase | None = None
    for step in part.steps:
        number = step.call.number
        phase = found.phase(number) if step.kind == StepKind.RUN else None
        if phase is None or not step.call.read:
            continue
        if phase == "forward":
            calls.add(found.module_call(number))
        n_by_phase[phase] += phase != last
        last = phase
    if calls:
        n_by_phase["forward"] = len(calls)
    return n_by_phase


def group_needing(
    targets: Sequence[Target],
) -> Iterator[tuple[str, tuple[str, ...], int]]:
    """Yield what the targets are, the first few of their names, and how many."""
    groups: dict[tuple[str, str], list[str]] = {}
    for target in targets:
        place = target.held[0]
        of = "" if place.kind == "parameter" else place.owner
        groups.setdefault((place.kind, of), []).append(place.name)
    for (kind, of), names in sorted(groups.items(), key=rank):
        word = "tensor" if kind in ("state", "alias") else kind
        plural = word if len(names) == 1 else f"{word}s"
        what = f"{plural} of {of}" if of else plural
        yield what, () if kind in WITH_IT else tuple(names[:MAX_NAMES]), len(names)


def rank(group: tuple[tuple[str, str], Sequence[str]]) -> tuple[bool, int]:
    """Return by what groups are sorted: the module's own first, then by number."""
    (kind, _), names = group
    return kind in WITH_IT, -len(names)


def join(words: Sequence[str]) -> str:
    """Return words as a sentence has them."""
    *first, last = words
    return f"{', '.join(first)} and {last}" if first else last


def format_seconds(seconds: float) -> str:
    """Return in words a time that is known roughly."""
    if seconds < 1:
        return "less than a second"
    minutes = seconds / 60
    if minutes < AS_MANY:
        return (
            f"about {seconds:.0f} s"
            if seconds < AS_MANY
            else f"about {minutes:.0f} min"
        )
    return f"about {minutes / 60:.0f} h"
