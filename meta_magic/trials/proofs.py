"""Prove advice: record the block again with what it advises, and compare the peaks."""

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Final, NamedTuple

from meta_magic.cost.advice.advice_records import Advice, Proof
from meta_magic.cost.advice.advisors import find_advice
from meta_magic.cost.memory_samples import take_sample
from meta_magic.errors import TrialError
from meta_magic.trials.changes import make_change
from meta_magic.trials.trial import ask_trial

if TYPE_CHECKING:
    from collections.abc import Mapping

    from meta_magic.trace.trace import Trace

__all__ = ["prove_advice"]

COMPUTED: Final = "only other code makes this change: what it saves is computed"

MOST: Final = 8
"""Of all advice, what is tried: each takes as long as the block; that which spares most
comes first."""

LATER: Final = "other advice spares more, and was tried: what this saves is computed"

FREE: Final = frozenset({"copy", "dtype", "gradient", "leak", "no gradient", "tying"})
"""Kinds of advice that say exactly how many FLOPs there are without the waste."""


class Outcome(NamedTuple):
    """What a recording of the block needs.

    Attributes:
        nbytes: At the peak, on the device that holds most.
        flops: FLOPs of all its calls.
        found: Kind and lines of each advice on it.
    """

    nbytes: int
    flops: int
    found: frozenset[tuple[str, tuple[int, ...]]]


def prove_advice(trace: "Trace") -> tuple[Advice, ...]:
    """Return the advice on a trace, proven where a choice does what it says.

    Advice is left out that helps nothing when it is followed.
    """
    return tuple(prove(trace, find_advice(trace)))


def prove(trace: "Trace", found: tuple[Advice, ...]) -> Iterator[Advice]:
    """Yield advice with its proof, or the reason why there is none."""
    tried = [advice for advice in found if advice.choice is not None][:MOST]
    before: Outcome | None = None
    for advice in found:
        if advice not in tried:
            yield replace(advice, unproven=LATER if advice.choice else COMPUTED)
            continue
        change = make_change(advice, trace.program) or str(advice.choice)
        try:
            if before is None:  # not as recorded: a cell may change what it starts from
                before = ask_trial(trace, ask)
            after = ask_trial(trace, ask, choices=[change])
        except TrialError as error:
            yield replace(advice, unproven=str(error))
            continue
        yield from judge(advice, before, after)


def judge(advice: Advice, before: Outcome, after: Outcome) -> Iterator[Advice]:
    """Yield advice, by what the block needs without and with its change."""
    is_left = (advice.kind, advice.lines) in after.found
    is_gone = not (is_left or advice.peak_nbytes)
    if is_other(advice, before, after):
        reason = f"with {advice.choice!r} the block computes something else"
        yield replace(advice, unproven=reason)
    elif after.nbytes < before.nbytes or is_gone:
        proof = Proof(
            choice=str(advice.choice),
            before_nbytes=before.nbytes,
            after_nbytes=after.nbytes,
        )
        yield replace(advice, proof=proof)
    elif is_left:
        reason = f"{advice.choice!r} changes nothing in the block itself"
        yield replace(advice, unproven=reason)


def is_other(advice: Advice, before: Outcome, after: Outcome) -> bool:
    """Whether a change has other FLOPs than the advice says."""
    spared = before.flops - after.flops
    return advice.kind in FREE and spared not in {0, advice.flops}


def ask(again: "Trace", _: "Mapping[str, object]") -> Outcome:
    """Return what a recording needs, and the advice on it."""
    found = frozenset((advice.kind, advice.lines) for advice in find_advice(again))
    return Outcome(take_sample(again).peak_nbytes, again.flops, found)
