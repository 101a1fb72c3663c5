"""What materializing will take (forecasts) and what it did: a record of each tensor."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Final

import torch

from meta_magic.errors import MaterializeError
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
from meta_magic.trace.signature import CPU, Phase
from meta_magic.trace.units import format_bytes, format_flops

# Values of ``filled_by`` besides the names of ``init=``; their attribute in
# FilledTensor explains them.
UNINITIALIZED: Final = "uninitialized"
DRAWN_OTHERWISE: Final = "drawn otherwise"
KEPT: Final = "kept"
LEFT: Final = "left on meta"

WHY_OTHERWISE: Final = (
    "random numbers that the cell draws with a GPU's generator; the replay drew "
    "others, with the CPU's"
)

# The sources of content that a report lists first.
FIRST: Final = ("replay", "checkpoint", "reset")

# Kinds of tensors that are only used with a module, and how the report counts them.
COMPANIONS: Final = {
    "state": "of optimizers",
    "gradient": "gradients",
    "alias": "in the same memory",
}

MAX_NAMES: Final = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class FilledTensor:
    """One tensor of the module, or one that is used with it.

    Attributes:
        name: Name as ``state_dict`` keys it.
        kind: ``parameter``, ``buffer``, ``attribute``, ``state`` of an optimizer that
            holds the module's parameters (or its schedulers and scalers), ``gradient``,
            or ``alias``, of another tensor in the memory of one of these.
        filled_by: The source of its content: the ``init=`` that made it,
            ``checkpoint`` for a path or a state dict, ``uninitialized`` if nothing did,
            ``drawn otherwise`` for random numbers that the cell draws by the generator
            of an accelerator, where a replay draws others; ``kept`` if it was real
            already; ``left on meta`` if it could not be made real.
        shape: Size of each dimension.
        dtype: Element type.
        tied_to: Name of the tensor on whose storage it lies, if that came first.
        device: Where it is now.

    Example:
        >>> with record():
        ...     layer = nn.Linear(3, 4)
        >>> materialize(layer).tensors[0].filled_by
        'replay'
    """

    name: str
    kind: str
    filled_by: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    tied_to: str | None
    device: torch.device = CPU

    @property
    def nbytes(self) -> int:
        """Bytes of its elements."""
        return prod(self.shape) * self.dtype.itemsize


@dataclass(frozen=True, slots=True, kw_only=True)
class MaterializeReport:
    """What :func:`meta_magic.materialize` did.

    Attributes:
        module: Class name of the module, or of another object that was made real.
        device: Where its content was made.
        tensors: All of its tensors.
        nbytes: Bytes of the storages that were made.
        peak_nbytes: The most bytes that were held at any moment, as planned.
        n_operators: Recorded operators that ran again.
        seconds: Wall time; not compared.
        notes: Notes and caveats.
        on_meta: What else is still on meta, as code with the caller's variables.

    Example:
        >>> with record():
        ...     layer = nn.Linear(3, 4)
        >>> materialize(layer).names("replay")
        ('weight', 'bias')
    """

    module: str
    device: torch.device
    tensors: tuple[FilledTensor, ...]
    nbytes: int
    peak_nbytes: int
    n_operators: int
    seconds: float = field(compare=False)
    notes: tuple[str, ...] = ()
    on_meta: tuple[str, ...] = ()

    @property
    def uninitialized(self) -> tuple[str, ...]:
        """Names of the tensors that hold whatever was in memory before."""
        return self.names(UNINITIALIZED)

    @property
    def left(self) -> tuple[str, ...]:
        """Names of the tensors that are used with the module, and are on meta still."""
        return self.names(LEFT)

    @property
    def drawn_otherwise(self) -> tuple[str, ...]:
        """Names of the tensors with other random numbers than the cell draws."""
        return self.names(DRAWN_OTHERWISE)

    @property
    def places(self) -> str:
        """The devices of the tensors now, as text."""
        made = [str(t.device) for t in self.tensors if t.filled_by not in (KEPT, LEFT)]
        return " and ".join(dict.fromkeys(made)) or str(self.device)

    @property
    def ties(self) -> tuple[tuple[str, str], ...]:
        """(name, name of the first on the same storage) for all tied tensors."""
        return tuple((t.name, t.tied_to) for t in self.tensors if t.tied_to is not None)

    def names(self, filled_by: str) -> tuple[str, ...]:
        """Return the names of the tensors with content from ``filled_by``."""
        return tuple(t.name for t in self.tensors if t.filled_by == filled_by)

    def __str__(self) -> str:
        made = [t for t in self.tensors if t.filled_by not in (KEPT, LEFT)]
        red = (UNINITIALIZED, DRAWN_OTHERWISE)
        others = (t.filled_by for t in made if t.filled_by not in red)
        where = f"{self.module} on {self.places}: {len(made):,} tensors"
        lines = [f"{where}, {format_bytes(self.nbytes)}, in {self.seconds:.2f} s"]
        for filled_by in dict.fromkeys((*FIRST, *others, KEPT)):
            lines += self._list(filled_by)
        ties = [t.name for t in made if t.tied_to and t.kind not in COMPANIONS]
        if ties:
            lines.append(f"  ties kept: {format_names(ties)}")
        if self.uninitialized:
            lines.append(f"  UNINITIALIZED: {format_names(self.uninitialized)}")
        if self.drawn_otherwise:
            drawn = format_names(self.drawn_otherwise)
            lines.append(f"  DRAWN OTHERWISE: {drawn}: {WHY_OTHERWISE}")
        if self.left:
            lines.append(f"  LEFT ON META: {format_names(self.left)}")
        lines += (f"  {note}" for note in self.notes)
        if self.on_meta:
            lines.append(f"  {format_on_meta(self.on_meta)}")
        return "\n".join(lines)

    def _list(self, filled_by: str) -> Iterator[str]:
        """Yield the lines for one source: the module's own tensors, then companions."""
        filled = [t for t in self.tensors if t.filled_by == filled_by]
        own = [t.name for t in filled if t.kind not in COMPANIONS]
        others = Counter(t.kind for t in filled if t.kind in COMPANIONS)
        if own:
            yield f"  {filled_by}: {format_names(own)}"
        if others:
            counted = (f"{n:,} {COMPANIONS[kind]}" for kind, n in others.items())
            yield f"  {filled_by}, with it: {', '.join(counted)}"


def format_on_meta(names: Sequence[str]) -> str:
    """Return the line that names what is still on meta, and how to make it real."""
    return (
        f"still on meta: {format_names(names)}; mm.materialize(...) takes any of them, "
        "and %meta materialize --all takes all"
    )


def format_names(names: Sequence[str]) -> str:
    """Return how many names there are, and the first few."""
    more = ", ..." if len(names) > MAX_NAMES else ""
    return f"{len(names):,} ({', '.join(names[:MAX_NAMES])}{more})"


MAX_LISTED: Final = 3
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
        yield what, () if kind in COMPANIONS else tuple(names[:MAX_LISTED]), len(names)


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
