"""Where the sizes come from that a failed call refuses.

``self.fc(x)`` refuses 800 features: the chain says that 800 is 32 * 5 * 5, by a
``flatten`` of line 12, and 32 is written in line 4. The block runs once more, in a
child, with integers that know their origin; the same run shows which integers each of
its expressions evaluated to. Read :func:`trace_refused`, then :func:`solve`.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import Any, Final, NamedTuple, TypeAlias

from meta_magic.children import NO_ANSWER
from meta_magic.errors import TrialError
from meta_magic.explain.edited_runs import PATIENCE, Workers
from meta_magic.explain.lineage.lineage_records import Lineage, LineageStep
from meta_magic.explain.lineage.size_lineages import CallProbe, find_lineages
from meta_magic.explain.lineage.traced_numbers import SizeOf, trace_number
from meta_magic.explain.lineage.traced_runs import SEEN, Run, Seen, prepare_run
from meta_magic.explain.probing import SECONDS, Probe, Variable
from meta_magic.explain.rules import find_value_range
from meta_magic.trace.failed_call import FailedCall
from meta_magic.trace.trace import Trace
from meta_magic.trials.trial import check_rerun, read_answer

MAX_CHAINS: Final = 4

Accepted: TypeAlias = tuple[Variable, tuple[int, ...], bool]
"""A number, the values that are accepted instead, and whether changing it is enough."""

NEAR: Final = 8
"""How far around a written number others are tried."""

MOST: Final = 4
"""How many times larger or smaller a number is tried, where sizes follow it."""


class Refused(NamedTuple):
    """A size that a failed call refuses.

    Attributes:
        accepted: What the call accepts instead, sizes of other operands first.
        is_alone: Whether it is enough to change this size.
        passed: The lines of calls that hand it on unchanged.
    """

    lineage: Lineage
    accepted: tuple[int, ...]
    is_alone: bool = True
    passed: tuple[int, ...] = ()


class RefusedSizes(NamedTuple):
    """What a run with traced integers shows.

    Attributes:
        seen: The integers that the block's expressions evaluated to.
        refused: The sizes that the failed call refuses.
        declined: Why there was no such run; "" if there was.
    """

    seen: Seen
    refused: tuple[Refused, ...]
    declined: str = ""


def trace_refused(trace: Trace, failed: FailedCall, workers: Workers) -> RefusedSizes:
    """Return where the sizes come from that a failed call refuses."""
    try:
        question = partial(_answer, failed=failed)
        run = prepare_run(check_rerun(trace), {}, question, is_probe=True)
    except TrialError as error:
        return RefusedSizes({}, (), str(error))
    answered = workers.read(workers.start(run))
    if answered is NO_ANSWER:  # it took long: edits are tried without it
        return RefusedSizes({}, ())
    found = read_answer(answered, PATIENCE)
    return RefusedSizes({}, (), str(found)) if isinstance(found, TrialError) else found


def _answer(run: Run, *, failed: FailedCall) -> RefusedSizes:
    """Return the values and refused sizes of a run; runs in the child."""
    seen = {span: frozenset(values) for span, values in SEEN.items() if values}
    function = failed.function
    if function is None:
        return RefusedSizes(seen, ())
    probe, given = _find_given(run, failed, function)
    lineages = find_lineages(run)
    chains: dict[tuple[str, ...], Refused] = {}
    ranged = find_value_range(failed)
    found: Iterable[Accepted] = _list_refused(probe, given)
    if ranged is not None:
        found = []
        if ranged.limit is not None and ranged.needed is not None:
            found = [(ranged.limit, (ranged.needed,), True)]
    for variable, accepted, is_alone in found:
        if variable in given and len(chains) < MAX_CHAINS:
            lineage = lineages.why(probe.label(variable), given[variable])
            passed = tuple(dict.fromkeys(lineages.passed))
            one = Refused(lineage, accepted, is_alone, passed)
            chains.setdefault(lineage.lines, one)
    return RefusedSizes(seen, tuple(chains.values()))


def _find_given(
    run: Run, failed: FailedCall, function: Callable[..., Any]
) -> tuple[Probe, Mapping[Variable, Any]]:
    """Return a probe of the failed call, and its numbers as traced ones."""
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


def _list_refused(probe: Probe, given: Mapping[Variable, Any]) -> Iterator[Accepted]:
    """Yield the numbers that are accepted with other values, and these values.

    Numbers come first if the accepted value is that of another number.
    """
    probe.limit(SECONDS)  # a candidate may be the number of layers
    if probe.accepts():
        return
    known = {*probe.values.values()} - {1}
    found: list[Accepted] = []
    alone = [(variable,) for variable in given]
    for groups in (alone, probe.list_groups()):  # such as the sides of an image
        for group in () if found else groups:
            accepted = probe.find_values(*group)
            accepted.sort(key=lambda size: size not in known)
            if group[0] in given and accepted:
                found.append((group[0], tuple(accepted), groups is alone))
    yield from sorted(found, key=lambda pair: not known & {*pair[1]})


def solve(refused: Refused) -> Iterator[tuple[tuple[LineageStep, ...], int, int]]:
    """Yield written numbers, the value with which a size is accepted, and that size.

    Equal numbers of a line, as both sides of an image, change together if neither does
    alone. A size that is only broadcast, as 1, comes last.
    """
    steps = refused.lineage.steps
    spots: dict[tuple[int | None, int | None], list[int]] = {}
    for number, step in enumerate(steps):
        if step.is_written:
            spots.setdefault((step.line, step.column), []).append(number)
    for wanted in sorted(refused.accepted, key=lambda size: size == 1):
        unsolved: dict[tuple[float, int | None], list[list[int]]] = {}
        for (line, _), numbers in spots.items():
            step = steps[numbers[0]]
            found = _solve_for(refused.lineage, numbers, wanted)
            if found is not None:
                yield (step,), found, wanted
            else:
                unsolved.setdefault((step.value, line), []).append(numbers)
        for group in (one for one in unsolved.values() if len(one) > 1):
            found = _solve_for(refused.lineage, [*chain(*group)], wanted)
            if found is not None:
                yield tuple(steps[numbers[0]] for numbers in group), found, wanted


def _solve_for(lineage: Lineage, numbers: Sequence[int], wanted: int) -> int | None:
    """Return the value of some equal numbers with which a size is a wanted one."""

    def predict(value: int) -> float | None:
        return lineage.predict(dict.fromkeys(numbers, value))

    value = int(lineage.steps[numbers[0]].value)
    guesses = _guess(value, lineage.size, wanted, predict)
    return next((one for one in guesses if one > 0 and predict(one) == wanted), None)


def _guess(
    value: int, size: int, wanted: int, predict: Callable[[int], float | None]
) -> Iterator[int]:
    """Yield values of a number that may turn a size into another one."""
    if size and value * wanted % size == 0:
        yield value * wanted // size
    if wanted and value * size % wanted == 0:
        yield value * size // wanted
    yield value + wanted - size
    yield from _bisect(value, wanted, predict)
    for step in range(1, NEAR + 1):
        yield from (value + step, value - step)


def _bisect(
    value: int, wanted: int, predict: Callable[[int], float | None]
) -> Iterator[int]:
    """Yield the least value that gives a size, if sizes only grow or only shrink.

    For 196 = (side // 16) ** 2 that is 224.
    """
    low, high = max(value // MOST, 1), value * MOST
    first, last = predict(low), predict(high)
    if first is None or last is None:
        return
    if not min(first, last) < wanted <= max(first, last):
        return
    is_growing = first < last
    while high - low > 1:
        middle = (low + high) // 2
        size = predict(middle)
        if size is None:
            return
        if size >= wanted if is_growing else size <= wanted:
            high = middle
        else:
            low = middle
    yield high
