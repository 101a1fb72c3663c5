"""Find what a size comes from by running the whole block with other numbers.

For sizes that calls made which cannot be tried alone: native functions that crash where
a size is wrong, and what went through numpy.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from time import monotonic
from typing import Final

from meta_magic.errors import TrialError
from meta_magic.explain.lineage.lineage_records import Lineage
from meta_magic.explain.lineage.size_lineages import Unresolved, write_root
from meta_magic.explain.lineage.traced_block import Literal
from meta_magic.explain.lineage.traced_runs import Run, ask_runs, list_literals
from meta_magic.trace.trace import Trace

__all__ = ["resolve"]

MAX_LITERALS: Final = 32
"""How many numbers of a block are changed to see what comes of it."""

AT_ONCE: Final = 8

SECONDS: Final = 3.0
"""After how long no more are changed."""

CHANGES: Final = (1, 3)
"""By how much each is changed; a formula has to hold for all."""

SEEN: Final = "seen by running the block with other numbers"


def resolve(
    trace: Trace, lineage: Lineage, unresolved: Sequence[Unresolved]
) -> Lineage:
    """Return a chain whose steps without a formula come from numbers of the block."""
    reached = [one for one in unresolved if one.call >= 0]
    if not reached:
        return lineage
    literals = list_literals(trace)
    moved = move_literals(trace, reached, literals)
    for at, one in enumerate(reached):
        sizes = {number: [seen[at] for seen in runs] for number, runs in moved.items()}
        lineage = extend(lineage, one.step, literals, sizes)
    return lineage


def move_literals(
    trace: Trace, reached: Sequence[Unresolved], literals: Sequence[Literal]
) -> dict[int, list[Sequence[int | None]]]:
    """Return what sizes are with each number of a block changed, by each change."""
    changed = [
        (number, literal.value + change)
        for number, literal in enumerate(literals[:MAX_LITERALS])
        for change in CHANGES
    ]
    sizes: dict[int, list[Sequence[int | None]]] = {}
    question = partial(read_sizes, reached=reached)
    end = monotonic() + SECONDS
    for first in range(0, len(changed), AT_ONCE):
        batch = changed[first : first + AT_ONCE] if monotonic() < end else []
        answers = ask_runs(trace, [{n: v} for n, v in batch], question)
        for (number, _), answer in zip(batch, answers, strict=True):
            seen: Sequence[int | None] = [None] * len(reached)
            if not isinstance(answer, TrialError):
                seen = answer
            sizes.setdefault(number, []).append(seen)
    return sizes


def read_sizes(run: Run, reached: Sequence[Unresolved]) -> list[int | None]:
    """Return sizes of what calls returned; None for those that were not reached."""
    calls = run.observer.calls
    sizes: list[int | None] = []
    for at in reached:
        made = calls[at.call].outputs if at.call < len(calls) else []
        shape = made[at.output].shape if at.output < len(made) else ()
        sizes.append(shape[at.dim] if at.dim < len(shape) else None)
    return sizes


def extend(
    lineage: Lineage,
    number: int,
    literals: Sequence[Literal],
    sizes: Mapping[int, Sequence[int | None]],
) -> Lineage:
    """Return a chain in which a step comes from the numbers that it was seen to."""
    step = lineage.steps[number]
    moved = {n: s for n, s in sizes.items() if {*s} - {None, step.value}}
    roots = [write_root(literals[n], literals[n].label) for n in moved]
    parts = range(len(lineage.steps), len(lineage.steps) + len(roots))
    formula = ""
    if len(moved) == 1:
        ((n, seen),) = moved.items()
        formula = fit(literals[n].value, int(step.value), seen)
    is_changed = formula not in {"", "{}"}
    shown = formula.format(*(root.value for root in roots)) if is_changed else ""
    text = f"{shown} {step.text}" if shown else step.text
    if not roots:
        formula = f"{step.value}"
        text += ", whatever numbers the block says"
    known = replace(step, text=text.strip(), formula=formula, parts=tuple(parts))
    steps = (*lineage.steps[:number], known, *lineage.steps[number + 1 :], *roots)
    return replace(lineage, steps=steps, caveat=f"{step.text.strip()}: {SEEN}")


def fit(value: int, size: int, seen: Sequence[int | None]) -> str:
    """Return the formula by which a size follows a number as it was seen; "" for none.

    Args:
        value: The number as it is written.
        size: The size then.
        seen: The size for each of ``CHANGES``.
    """
    if seen[0] is None:
        return ""
    slope = seen[0] - size
    for change, other in zip(CHANGES, seen, strict=True):
        if other is not None and other != size + slope * change:
            return ""
    rest = size - slope * value
    text = "{}" if slope == 1 else f"{slope} * {{}}"
    return text if not rest else f"{text} {'+' if rest > 0 else '-'} {abs(rest)}"
