"""Prove advice: record the block again with what it advises, and compare the peaks."""

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from meta_magic.cost.advice.advice_records import Advice, Proof
from meta_magic.cost.advice.advisors import find_advice
from meta_magic.cost.samples import take_sample
from meta_magic.errors import TrialError
from meta_magic.trials.trial import ask_trial

if TYPE_CHECKING:
    from collections.abc import Mapping

    from meta_magic.trace.trace import Trace

__all__ = ["prove_advice"]


def prove_advice(trace: "Trace") -> tuple[Advice, ...]:
    """Return the advice on a trace, proven where a choice does what it says.

    Advice is left out that helps nothing when it is followed.
    """
    return tuple(prove(trace, find_advice(trace)))


def prove(trace: "Trace", found: tuple[Advice, ...]) -> Iterator[Advice]:
    """Yield advice with its proof, or the reason why there is none."""
    before: int | None = None
    for advice in found:
        if advice.choice is None:
            yield advice
            continue
        try:
            if before is None:  # not as recorded: a cell may change what it starts from
                before, _ = ask_trial(trace, ask)
            after, kinds = ask_trial(trace, ask, choices=[advice.choice])
        except TrialError as error:
            yield replace(advice, unproven=str(error))
            continue
        if after < before:
            proof = Proof(
                choice=advice.choice, before_nbytes=before, after_nbytes=after
            )
            yield replace(advice, proof=proof)
        elif advice.kind in kinds:
            reason = f"{advice.choice!r} changes nothing in the block itself"
            yield replace(advice, unproven=reason)


def ask(again: "Trace", _: "Mapping[str, object]") -> tuple[int, list[str]]:
    """Return the peak of a recording, and the kinds of advice on it."""
    return take_sample(again).peak_nbytes, [a.kind for a in find_advice(again)]
