"""Advice that follows from what several ranks recorded, beside each other.

``DistributedSampler`` forgotten, a smaller last batch on one rank, one seed for the
dropout of all ranks: each rank alone looks right. Read :func:`advise_ranks`.
"""

from collections.abc import Iterator, Mapping
from typing import Final

from meta_magic.cost.advice.advice_records import Advice
from meta_magic.trace.trace import Trace
from meta_magic.trace.units import format_shape

BACKWARD: Final = "backward"
DROPOUT: Final = ("native_dropout", "bernoulli", "dropout")


def advise_ranks(traces: Mapping[int, Trace]) -> tuple[Advice, ...]:
    """Return the advice on ranks that train one model on parts of a batch."""
    parallel = {r: trace for r, trace in traces.items() if is_data_parallel(trace)}
    return (*find_other_batches(parallel), *find_equal_dropout(parallel))


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
    found: dict[tuple[str, str], tuple[int, str]] = {}
    for rank, trace in traces.items():
        for root in trace.modules:
            if root.first_call is None:
                continue
            call = trace.module_calls[root.first_call]
            shapes = ", ".join(format_shape(tensor.shape) for _, tensor in call.inputs)
            first, wanted = found.setdefault(
                (root.name, root.class_name), (rank, shapes)
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
        lines = find_dropout(trace)
        randomness = trace.program.randomness
        drawn = randomness.states, randomness.draws
        if lines is None or not randomness.draws:
            continue
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


def find_dropout(trace: Trace) -> tuple[int, ...] | None:
    """Return the line of the first dropout that draws, as ``(line,)``.

    Returns:
        () if the line is not known; None if no dropout draws.
    """
    program = trace.program
    is_dropout = [any(name in s.op for name in DROPOUT) for s in program.signatures]
    for index, number in enumerate(program.signature_numbers()):
        if is_dropout[number]:
            line = trace.ops[index].line
            return () if line is None else (line,)
    return None
