"""Where the sizes come from that a failed call refuses, from one more run of its block.

The same run tells what integers the block's expressions stood for.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

from meta_magic.errors import TrialError
from meta_magic.explain.lineage.lineage_records import Lineage, Step
from meta_magic.explain.lineage.size_lineages import CallProbe, find_lineages
from meta_magic.explain.lineage.traced_numbers import SizeOf, trace_number
from meta_magic.explain.lineage.traced_runs import Run, Seen, ask_run, read_seen
from meta_magic.explain.probing import Probe, Variable
from meta_magic.trace.failed_call import FailedCall
from meta_magic.trace.trace import Trace

MAX_CHAINS: Final = 4

NEAR: Final = 8
"""How far around a written number others are tried for the size that is accepted."""


class Refused(NamedTuple):
    """A size that a failed call refuses.

    Attributes:
        lineage: Where it comes from.
        accepted: What the call accepts in its place, other sizes of it first.
    """

    lineage: Lineage
    accepted: tuple[int, ...]


class Sight(NamedTuple):
    """What a run with traced numbers showed.

    Attributes:
        seen: What integers the block's expressions stood for.
        refused: The sizes that the failed call refuses.
        declined: Why there was no such run, in words; "" if there was.
    """

    seen: Seen
    refused: tuple[Refused, ...]
    declined: str = ""


def trace_refused(trace: Trace, failed: FailedCall) -> Sight:
    """Return where the sizes come from that a failed call refuses.

    Args:
        trace: The trace that it ended.
        failed: The call, its operands with names.
    """
    try:
        return ask_run(trace, partial(answer, failed=failed))
    except TrialError as error:
        return Sight({}, (), str(error))


def answer(run: Run, *, failed: FailedCall) -> Sight:
    """Return what a run showed; called in the child."""
    seen = read_seen()
    function = failed.function
    if function is None:
        return Sight(seen, ())
    probe, given = find_given(run, failed, function)
    lineages = find_lineages(run)
    refused = []
    for variable, accepted in list_refused(probe, given):
        lineage, _ = lineages.why(probe.label(variable), given[variable])
        refused.append(Refused(lineage, accepted))
    return Sight(seen, tuple(drop_alike(refused)))


def find_given(
    run: Run, failed: FailedCall, function: Callable[..., Any]
) -> tuple[Probe, Mapping[Variable, Any]]:
    """Return what tries a failed call, and where its numbers come from."""
    calls = run.observer.calls
    call = calls[-1] if calls and calls[-1].has_failed else None
    if call is not None and call.function is function:
        found = CallProbe(call, failed.operands)
        return found.probe, found.given
    nodes = run.observer.by_number
    return Probe(function, failed), {
        Variable(number, dim): trace_number(size, SizeOf(nodes[operand.tensor], dim))
        for number, operand in enumerate(failed.operands)
        if operand.tensor in nodes
        for dim, size in enumerate(operand.geometry.shape)
    }


def list_refused(
    probe: Probe, given: Mapping[Variable, Any]
) -> Iterator[tuple[Variable, tuple[int, ...]]]:
    """Yield the numbers of which others are accepted, and which.

    Those first of which one is accepted that another number has.
    """
    if probe.accepts({}):
        return
    known = {*probe.values.values()} - {1}
    found = []
    for variable in given:
        candidates = probe.list_candidates(variable)
        accepted = [size for size in candidates if probe.accepts({variable: size})]
        accepted.sort(key=lambda size: size not in known)
        if accepted:
            found.append((variable, tuple(accepted)))
    yield from sorted(found, key=lambda pair: not known & {*pair[1]})


def drop_alike(refused: Sequence[Refused]) -> list[Refused]:
    """Return the first few of those that do not read the same."""
    read = {one.lineage.lines: one for one in reversed(refused)}
    return [one for one in refused if one in read.values()][:MAX_CHAINS]


def solve(refused: Refused) -> Iterator[tuple[Step, int]]:
    """Yield the written numbers by which a size would be accepted, and as what."""
    lineage = refused.lineage
    for wanted in refused.accepted:
        for number, step in enumerate(lineage.steps):
            for value in guess(int(step.value), lineage.size, wanted):
                is_right = lineage.predict({number: value}) == wanted
                if step.is_written and is_right:
                    yield step, value
                    break


def guess(value: int, size: int, wanted: int) -> Iterator[int]:
    """Yield what a number may be for a size to be another one, the likeliest first."""
    if size and value * wanted % size == 0:
        yield value * wanted // size
    if wanted and value * size % wanted == 0:
        yield value * size // wanted
    yield value + wanted - size
    for step in range(1, NEAR + 1):
        yield from (value + step, value - step)
