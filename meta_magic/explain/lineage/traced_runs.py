"""Run a trace's block again in children, its numbers knowing where they come from."""

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final, NamedTuple, TypeVar

from meta_magic.errors import TrialError
from meta_magic.explain.lineage.number_names import Names
from meta_magic.explain.lineage.observed_calls import CallObserver
from meta_magic.explain.lineage.size_lineages import Lineages
from meta_magic.explain.lineage.traced_block import Literal, set_literals, trace_block
from meta_magic.torch_private.dynamo import leave_dynamo_out
from meta_magic.trace.rerun import Rerun
from meta_magic.trace.trace import Trace
from meta_magic.trials.blocks import parse_block
from meta_magic.trials.trial import check_rerun
from meta_magic.trials.variants import Variant, ask_variants

__all__ = ["Run", "ask_run", "ask_runs", "find_lineages", "list_literals"]

T = TypeVar("T")

MAX_DEPTH: Final = 100_000
"""How many calls of Python may be within each other: a chain is as long as a model."""

SECONDS: Final = 5.0
"""What a run, and what is asked of it, may take."""


class Run(NamedTuple):
    """A block that ran with traced numbers.

    Attributes:
        trace: What was recorded.
        observer: Has the calls.
        literals: The numbers that the block says.
        variables: Its variables when it had run, or raised.
    """

    trace: Trace
    observer: CallObserver
    literals: Sequence[Literal]
    variables: Mapping[str, Any]


def ask_run(trace: Trace, question: Callable[[Run], T]) -> T:
    """Run a trace's block with traced numbers in a child, and return an answer.

    Args:
        trace: The trace.
        question: Returns what can be pickled.

    Raises:
        TrialError: It cannot be run again; the message says why.
    """
    (answered,) = ask_runs(trace, [{}], question)
    if isinstance(answered, TrialError):
        raise answered
    return answered


def ask_runs(
    trace: Trace,
    values: Sequence[Mapping[int, int]],
    question: Callable[[Run], T],
) -> list[T | TrialError]:
    """Run a trace's block several times, its numbers being others, all at once.

    Args:
        trace: The trace.
        values: For each run what some of the numbers that the block says are instead.
        question: As of :func:`ask_run`.

    Raises:
        TrialError: It cannot be run again at all.
    """
    rerun = check_rerun(trace)
    variants = [make_variant(rerun, own, question) for own in values]
    return ask_variants(trace, variants, SECONDS)


def list_literals(trace: Trace) -> Sequence[Literal]:
    """Return the numbers that a trace's block says.

    Raises:
        TrialError: It cannot be run again at all.
    """
    return trace_block(parse_block(check_rerun(trace))).literals


def make_variant(
    rerun: Rerun, values: Mapping[int, int], question: Callable[[Run], Any]
) -> Variant:
    """Return a block with traced numbers, and what is asked of its run."""
    block, literals = trace_block(parse_block(rerun))
    entered: list[CallObserver] = []

    @contextmanager
    def observe() -> Iterator[None]:
        set_literals(literals, values)
        with CallObserver(rerun.file) as observer:
            entered.append(observer)
            yield

    def ask(trace: Trace, variables: Mapping[str, Any]) -> Any:
        sys.setrecursionlimit(MAX_DEPTH)
        leave_dynamo_out()
        return question(Run(trace, entered[0], literals, variables))

    return Variant(block, observe, ask)


def find_lineages(run: Run) -> Lineages:
    """Return what finds where the numbers of a run come from."""
    names = Names(run.variables, [*run.observer.modules.values()])
    return Lineages(run.literals, names)
