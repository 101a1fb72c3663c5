"""Advice that follows from what several ranks recorded, beside each other.

``DistributedSampler`` forgotten, a smaller last batch on one rank, one seed for the
dropout of all ranks, another seed for the parameters of each: each rank alone looks
right. Read :func:`advise_ranks`.

:func:`prove_ranks` records the ranks again with a change that removes the advice. The
script is not edited: a child makes the change when the script first calls a model.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import wraps
from typing import Any, Final

import torch
from torch import distributed, nn

from meta_magic.cost.advice.advisors import collect_evidence
from meta_magic.cost.advice.evidence import Advice, Proof
from meta_magic.cost.advice.parameter_advice import name_by_storage
from meta_magic.cost.advice.world_advice import find_sharded, measure
from meta_magic.errors import WorldError
from meta_magic.replaying.program_calls import draw_before, read_draws, state_before
from meta_magic.trace.program import Randomness
from meta_magic.trace.trace import Trace
from meta_magic.trace.units import format_shape

BACKWARD: Final = "backward"
DROPOUT: Final = ("native_dropout", "bernoulli", "dropout")


def advise_ranks(traces: Mapping[int, Trace]) -> tuple[Advice, ...]:
    """Return the advice on ranks that train one model on parts of a batch."""
    parallel = {r: trace for r, trace in traces.items() if is_data_parallel(trace)}
    return (
        *find_other_batches(parallel),
        *find_equal_dropout(parallel),
        *find_other_values(traces),
    )


def is_data_parallel(trace: Trace) -> bool:
    """Whether a trace's gradients are reduced over ranks, and no layer is divided."""
    shardings, is_fsdp = set(), False
    for root in trace.modules:
        for node in root.walk():
            shardings |= {tensor.sharding for tensor in node.tensors}
            is_fsdp |= node.class_name.rpartition(".")[2].startswith("FSDP")
    kinds = {sent.kind for sent in trace.sent if sent.phase == BACKWARD}
    reduces = not kinds.isdisjoint(("all_reduce", "reduce_scatter"))
    return reduces and shardings <= ({None, "Shard(0)"} if is_fsdp else {None})


def find_other_batches(traces: Mapping[int, Trace]) -> Iterator[Advice]:
    """Yield advice if ranks call a model with inputs of different shapes."""
    found: dict[tuple[int, str, str], tuple[int, str]] = {}
    for rank, trace in traces.items():
        for number, root in enumerate(trace.modules):
            if root.first_call is None:
                continue
            call = trace.module_calls[root.first_call]
            shapes = ", ".join(format_shape(tensor.shape) for _, tensor in call.inputs)
            first, wanted = found.setdefault(
                (number, root.name, root.class_name), (rank, shapes)
            )
            if shapes != wanted:
                yield Advice(
                    kind="batch",
                    text=f"rank {first} calls {root.name or root.class_name} with "
                    f"{wanted}, rank {rank} with {shapes}: the mean of their gradients "
                    "is not that of the whole batch",
                    lines=() if call.line is None else (call.line,),
                )
                return


def find_equal_dropout(traces: Mapping[int, Trace]) -> Iterator[Advice]:
    """Yield advice if two ranks draw the same masks for dropout."""
    known: dict[object, int] = {}
    for rank, trace in traces.items():
        found = find_dropout(trace)
        if found is None:
            continue
        drawn, lines = found
        if drawn in known:
            yield Advice(
                kind="dropout",
                text=f"ranks {known[drawn]} and {rank} draw the same masks for "
                "dropout: after the model is built, seed each rank differently, as by "
                "torch.manual_seed(seed + rank)",
                lines=lines,
            )
            return
        known[drawn] = rank


def find_dropout(trace: Trace) -> tuple[object, tuple[int, ...]] | None:
    """Return where dropout draws its first mask, and the line; None without dropout."""
    program = trace.program
    is_dropout = [any(name in s.op for name in DROPOUT) for s in program.signatures]
    numbers = [*program.signature_numbers()]
    for draw in read_draws(program.randomness, 0):
        if is_dropout[numbers[draw.call]]:
            _, *origin = find_origin(program.randomness, draw.source)
            line = trace.ops[draw.call].line
            return tuple(origin), () if line is None else (line,)
    return None


def find_origin(randomness: Randomness, source: int) -> tuple[int | None, object, int]:
    """Return the state that a draw goes back to.

    Returns:
        Its number, or None if it is not known; the state; and the number of draws
        between.
    """
    draws, n_draws = [*read_draws(randomness, 0)], 0
    while (before := draw_before(source)) is not None:
        source, n_draws = draws[before].source, n_draws + 1
    number = state_before(source)
    return number, None if number is None else randomness.states[number], n_draws


def find_other_values(traces: Mapping[int, Trace]) -> Iterator[Advice]:
    """Yield advice if ranks average gradients of parameters that differ."""
    known: tuple[int, object] | None = None
    for rank, trace in traces.items():
        found = find_first_values(trace)
        if found is None:
            continue
        state, lines = found
        first, wanted = known = known or (rank, state)
        if rank != first and (state is None or state != wanted):
            yield Advice(
                kind="initial values",
                text=f"ranks {first} and {rank} draw other initial values for their "
                "parameters, and reduce the gradients: give all ranks the same "
                "torch.manual_seed before the model is built, or broadcast the "
                "parameters from rank 0",
                lines=lines,
            )
            return


def find_first_values(trace: Trace) -> tuple[object, tuple[int, ...]] | None:
    """Return where the draws of a replicated model begin, and their line.

    Returns:
        The state of the generator and the number of draws since, None if nobody seeded
        it; and ``(line,)``. None if the parameters are not drawn, another rank sends
        them, or their gradients are not reduced over ranks.
    """
    parameters = name_by_storage(trace.modules)
    if not parameters:
        return None
    evidence = collect_evidence(trace)
    backward = evidence.is_in("backward").nonzero()[0]
    if not len(backward) or find_sharded(evidence):
        return None
    columns, begin = evidence.columns, int(backward[0])
    written = evidence.last_call(columns.is_written & (columns.call < begin))
    filled = {max(int(written[s]), int(evidence.maker[s])) for s in parameters}
    sizes = Counter(int(evidence.nbytes[storage]) for storage in parameters)
    many = [s for s in trace.sent if len(s.ranks) > 1]
    n_before = sum(sent.nbytes for sent in many if sent.index < begin)
    later = [s for s in many if s.index > begin and s.kind == "all_reduce"]
    reduced = Counter(sent.nbytes for sent in later)
    total = sum(sizes.elements())
    # Each gradient on its own, or all in one tensor; activations have other sizes.
    if n_before >= total / 2 or not (sizes <= reduced or total in reduced):
        return None
    randomness = trace.program.randomness
    draws = read_draws(randomness, 0)
    draw = next((draw for draw in draws if draw.call in filled), None)
    if draw is None:
        return None
    line = trace.ops[draw.call].line
    lines = () if line is None else (line,)
    number, *origin = find_origin(randomness, draw.source)
    n_unseeded = randomness.n_unseeded
    if number is None or n_unseeded is None or number < n_unseeded:
        return None, lines
    return tuple(origin), lines


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
