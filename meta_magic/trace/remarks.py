"""What is said of some operators: values that they needed, kernels, assumptions."""

from collections.abc import Iterable, Iterator
from typing import TypeAlias

from meta_magic.trace.downstream import find_assumed
from meta_magic.trace.program import Program
from meta_magic.trace.provenance import Evaluation
from meta_magic.trace.units import format_bytes, format_flops

__all__ = [
    "Span",
    "find_assumptions",
    "find_evaluations",
    "find_kernels",
    "find_raised",
]

Span: TypeAlias = tuple[int, int, str]
"""First operator, operator after the last, and what is said of them."""


def find_evaluations(program: Program) -> list[Span]:
    """Return what it took to compute values."""
    return [(e.call, e.call + 1, format_evaluation(e)) for e in program.evaluations]


def find_kernels(program: Program) -> list[Span]:
    """Return which kernels the device would choose."""
    return [(k.first_op, k.end_op, k.text) for k in program.kernels]


def find_assumptions(program: Program) -> list[Span]:
    """Return what was assumed for sizes."""
    return [*join(sorted(find_assumed(program).items()))]


def find_raised(program: Program) -> list[Span]:
    """Return the error of the call that ended the block."""
    raised, index = program.raised, program.n_calls
    return [] if raised is None else [(index, index + 1, raised.error)]


def join(texts: Iterable[tuple[int, str]]) -> Iterator[Span]:
    """Yield the stretches of operators that stand in a row and have the same text."""
    first, end, current = 0, 0, ""
    for index, text in texts:
        if (index, text) != (end, current):
            if end > first:
                yield first, end, current
            first, current = index, text
        end = index + 1
    if end > first:
        yield first, end, current


def format_evaluation(evaluation: Evaluation) -> str:
    """Return what it took to compute a value."""
    _, n_calls, nbytes, flops = evaluation
    return f"{n_calls:,} calls, {format_bytes(nbytes)}, {format_flops(flops)}"
