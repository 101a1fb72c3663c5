"""Prove advice on ranks: record them again with a change, which removes the advice.

The script is not edited: a child does what the advice says when the script first calls
a model. Read :func:`prove_ranks`.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import wraps
from typing import Any, Final

import torch
from torch import distributed, nn

from meta_magic.cost.advice.advice_records import Advice, Proof
from meta_magic.cost.advice.advisors import collect_evidence
from meta_magic.cost.advice.world_advice import measure
from meta_magic.errors import WorldError
from meta_magic.ranks.rank_advice import advise_ranks
from meta_magic.trace.trace import Trace


def seed_ranks(_: nn.Module) -> None:
    """Seed each rank differently."""
    torch.manual_seed(torch.initial_seed() + distributed.get_rank())


def send_parameters(model: nn.Module) -> None:
    """Give all ranks the parameters of rank 0."""
    for parameter in model.parameters():
        distributed.broadcast(parameter.data, 0)


CHANGES: Final[Mapping[str, tuple[str, Callable[[nn.Module], None]]]] = {
    "dropout": ("torch.manual_seed(seed + rank)", seed_ranks),
    "initial values": ("parameters broadcast from rank 0", send_parameters),
}
"""By kind of advice: the change that removes it, in words and as a function."""

OPEN: Final = "which batch each rank should get is for the script to say"


@contextmanager
def changed(kind: str | None) -> Iterator[None]:
    """Make the change that a kind of advice asks for at the first call of a model."""
    call, is_due = nn.Module.__call__, kind is not None

    @wraps(call)
    def call_changed(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
        nonlocal is_due
        if is_due and any(True for _ in module.parameters()):
            is_due = False
            CHANGES[str(kind)][1](module)
        return call(module, *args, **kwargs)

    if is_due:
        nn.Module.__call__ = call_changed  # type: ignore[method-assign]
    try:
        yield
    finally:
        nn.Module.__call__ = call  # type: ignore[method-assign]


def prove_ranks(
    ranks: Mapping[int, Trace],
    record_again: Callable[[str], Mapping[int, Trace]] | None,
) -> Iterator[Advice]:
    """Yield the advice on ranks with its proof, or why there is none."""
    for advice in advise_ranks(ranks):
        if advice.kind not in CHANGES or record_again is None:
            yield replace(advice, unproven=OPEN)
            continue
        choice, _ = CHANGES[advice.kind]
        try:
            after = record_again(advice.kind)
        except WorldError as error:
            yield replace(advice, choice=choice, unproven=str(error))
            continue
        if any(one.kind == advice.kind for one in advise_ranks(after)):
            reason = f"{choice!r} changes nothing in the script"
            yield replace(advice, choice=choice, unproven=reason)
            continue
        (nbytes, seconds), (after_nbytes, after_seconds) = map(weigh, (ranks, after))
        proof = Proof(
            choice=choice,
            before_nbytes=nbytes,
            after_nbytes=after_nbytes,
            before_seconds=seconds,
            after_seconds=after_seconds,
        )
        yield replace(advice, choice=choice, proof=proof)


def weigh(ranks: Mapping[int, Trace]) -> tuple[int, float]:
    """Return the largest peak of some ranks, and the longest communication."""
    return (
        max(trace.memory.peak_nbytes for trace in ranks.values()),
        max(measure(collect_evidence(t), t.sent)[0] for t in ranks.values()),
    )
