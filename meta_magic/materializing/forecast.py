"""What a materialization takes, before it is done: operators, time, and memory.

The panel shows it beside the button, and a materialization that does not fit is refused
before anything is allocated. Read ``Forecast`` first.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import torch

from meta_magic.errors import MaterializeError
from meta_magic.materializing.report import COMPANIONS
from meta_magic.materializing.targets import Target
from meta_magic.replaying.execution import Execution, ProgramReplay
from meta_magic.replaying.steps import StepKind
from meta_magic.replaying.uses import USES, Uses, find_phases
from meta_magic.replaying.value_budget import (
    count_products,
    estimate_seconds,
    free_nbytes,
    measure_rates,
)
from meta_magic.trace.signature import Phase
from meta_magic.trace.units import format_bytes, format_flops

MAX_NAMES: Final = 3
N_LARGEST: Final = 5
MAX_OF_UNIT: Final = 90  # seconds or minutes that are not yet said in the next unit

NAMES: Final[Mapping[Phase, tuple[str, str]]] = {
    "forward": ("forward", "forwards"),
    "backward": ("backward pass", "backward passes"),
    "optimizer": ("optimizer step", "optimizer steps"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """What a materialization replays, why, and about how long that takes.

    Attributes:
        n_operators: Recorded operators that run again.
        uses: (``forward``, ``backward`` or ``optimizer``, how many) of the uses after
            the construction that are computed again; () if only the construction is.
        needed_by: (kind, a few names, how many) of the tensors that need these uses,
            such as ``("buffers of BatchNorm2d", ("running_mean",), 2)``; without names
            for tensors that are only used with the module. () if only later random
            numbers need them.
        flops: FLOPs of the matrix products and convolutions.
        seconds: About how long it takes, by rates measured on the device.
    """

    n_operators: int = 0
    uses: tuple[tuple[Phase, int], ...] = ()
    needed_by: tuple[tuple[str, tuple[str, ...], int], ...] = ()
    flops: int = 0
    seconds: float = 0.0

    def join(self, other: "Forecast") -> "Forecast":
        """Return the forecast of both together."""
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
        *first, last = [f"{n:,} {NAMES[use][n != 1]}" for use, n in self.uses]
        counted = f"{', '.join(first)} and {last}" if first else last
        cost = f"{format_flops(self.flops)}, {time}" if self.flops else time
        return f"replays {counted} ({cost}), for {self._name_needing()}"

    def _name_needing(self) -> str:
        if not self.needed_by:
            return "random numbers that are drawn after it"
        return "; ".join(
            f"{n:,} {kind} ({', '.join(names)}{', …' if n > len(names) else ''})"
            if names
            else f"{n:,} {kind}"
            for kind, names, n in self.needed_by
        )


def forecast_replays(
    replays: Sequence[tuple[Execution, Mapping[int, Target]]], device: torch.device
) -> Forecast:
    """Return the forecast of some replays, each with its targets by storage."""
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


def count_uses(part: ProgramReplay) -> Counter[Phase]:
    """Return how many uses of modules a part of a replay computes again."""
    found = Uses(part.plan.recorded)
    calls: set[int | None] = set()
    n_by_phase: Counter[Phase] = Counter()
    last: Phase | None = None
    for step in part.plan.steps:
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


def group_needing(targets: list[Target]) -> Iterator[tuple[str, tuple[str, ...], int]]:
    """Yield kind, a few names, and number of targets, the module's own first."""
    groups: dict[tuple[str, str], list[str]] = {}
    for target in targets:
        item = target.held[0]
        of = "" if item.kind == "parameter" else item.owner
        groups.setdefault((item.kind, of), []).append(item.name)
    for kind, of in sorted(groups, key=lambda k: (k[0] in COMPANIONS, -len(groups[k]))):
        names = groups[kind, of]
        noun = "tensor" if kind in ("state", "alias") else kind
        plural = noun if len(names) == 1 else f"{noun}s"
        what = f"{plural} of {of}" if of else plural
        yield what, () if kind in COMPANIONS else tuple(names[:MAX_NAMES]), len(names)


def format_seconds(seconds: float) -> str:
    """Return a rough time as text."""
    if seconds < 1:
        return "less than a second"
    minutes = seconds / 60
    if seconds < MAX_OF_UNIT:
        return f"about {seconds:.0f} s"
    if minutes < MAX_OF_UNIT:
        return f"about {minutes:.0f} min"
    return f"about {minutes / 60:.0f} h"


def check_budget(
    what: str, device: torch.device, needed: int, targets: Sequence[Target]
) -> None:
    """Refuse what does not fit."""
    free = free_nbytes(device)
    if needed <= free:
        return
    largest = sorted(targets, key=lambda target: -target.nbytes)[:N_LARGEST]
    listed = ", ".join(f"{t.name} {format_bytes(t.nbytes)}" for t in largest)
    raise MaterializeError(
        f"cannot put {what} on {device}: it takes {format_bytes(needed)} at its peak "
        f"and {format_bytes(free)} is free. The largest tensors: {listed}. Materialize "
        "a submodule, cast with dtype=, or choose another device"
    )
