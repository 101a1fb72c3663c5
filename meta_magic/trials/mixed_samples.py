"""The first call of a model that mixes the samples of a batch.

``%%meta --check batch=B`` replays the model's first call three times: as it is, with
sample 0 changed, and with sample 1 changed. An element that differs in both later
replays depends on two samples. No rule of any operator is written here, and no
dimension is followed. Read :func:`find_mixing` first.
"""

from collections import deque
from functools import partial
from typing import Final, NamedTuple, TypeAlias

import torch
from torch import Tensor

from meta_magic.children import NO_ANSWER, ask_children
from meta_magic.errors import MetaMagicError, ReplayError, TrialError
from meta_magic.replaying.execution import Execution
from meta_magic.replaying.steps import Request, Step, StepKind
from meta_magic.replaying.verify import build_tensor
from meta_magic.torch_private.snapshot import RealTorch
from meta_magic.trace.calls import ModuleCall, TensorMetadata
from meta_magic.trace.notes import Note
from meta_magic.trace.trace import Trace
from meta_magic.trace.units import format_shape
from meta_magic.trials.dims import find_dims

SECONDS: Final = 5.0
MAX_NBYTES: Final = 2**28
"""Of all that a replay makes."""

BY_DESIGN: Final = ("batch_norm", "instance_norm")
"""Operators that mix samples on purpose while a model is trained."""

UNWRITTEN: Final = ("empty", "new_")
"""Operators whose results are memory that nothing wrote."""

Versions: TypeAlias = tuple[Tensor, Tensor, Tensor]
"""A result: as it is, with another sample 0, and with another sample 1."""

Content: TypeAlias = torch.UntypedStorage | Tensor


class BatchEntry(NamedTuple):
    """Where a batch enters a model."""

    call: ModuleCall
    tensor: TensorMetadata
    dim: int


def check_samples(trace: Trace, batch: str) -> tuple[Note, ...]:
    """Return a note on the first call that mixes samples, or on why none is known."""
    try:
        entry = find_entry(trace, batch)
        ask = partial(find_mixing, trace, entry)
        (found,) = ask_children([ask], SECONDS, 2 * SECONDS)
        if found is NO_ANSWER:
            raise TrialError(f"the replay took more than {SECONDS:g} s, or failed")
    except MetaMagicError as error:
        return (make_note(f"whether samples are mixed is not known: {error}"),)
    notes: tuple[Note, ...] = found
    return notes


def find_entry(trace: Trace, batch: str) -> BatchEntry:
    """Return where a batch enters the first model that is called with it."""
    dims = find_dims(trace, [batch])
    name = batch.partition("=")[0]
    for call in trace.module_calls:
        for _, tensor in call.inputs if call.parent is None else ():
            texts = dims.name(tensor.tensor_id, tensor.shape)
            if name in texts and tensor.shape[texts.index(name)] > 1:
                return BatchEntry(call, tensor, texts.index(name))
    raise TrialError(f"no model is called with a tensor that has {name} > 1 samples")


def find_mixing(trace: Trace, entry: BatchEntry) -> tuple[Note, ...]:
    """Return a note on the first call that mixes samples; runs in a child."""
    call = entry.call
    wanted = frozenset(tensor.storage_id for _, tensor in call.outputs)
    request = Request(storages=wanted, until=call.end_op)
    try:
        versions = [replay_version(trace, request, entry, n) for n in (None, 0, 1)]
    except ReplayError as error:
        return (make_note(f"whether samples are mixed is not known: {error}"),)
    mixed: set[int] = set()
    for key, usual in versions[0].items():
        op = trace.ops[key[0]]
        overlap: str | None = ""
        if not any(tensor.storage_id in mixed for tensor in op.inputs):
            made = usual, versions[1][key], versions[2][key]
            is_known = not any(name in op.op for name in UNWRITTEN)
            overlap = describe_overlap(made, op.inputs) if is_known else None
        if overlap is None:
            continue
        mixed |= {tensor.storage_id for tensor in op.outputs}
        if overlap and not any(name in op.op for name in BY_DESIGN):
            name = (op.function or op.op).rpartition(".")[2]
            text = f"{name} mixes samples of the batch: {overlap}"
            line = call.line if op.line is None else op.line
            why = "replayed with another sample 0, and with another sample 1"
            return (make_note(text, line, why),)
        if overlap:
            where = "" if op.line is None else f" of line {op.line}"
            text = f"samples are followed up to {op.op}{where}, which mixes them"
            return (make_note(f"{text} on purpose while a model is trained", op.line),)
    return ()


def make_note(text: str, line: int | None = None, why: str = "") -> Note:
    """Return a note on samples."""
    return Note(kind="samples", text=text, line=line, severity="asked for", why=why)


def replay_version(
    trace: Trace, request: Request, entry: BatchEntry, sample: int | None
) -> dict[tuple[int, int], Tensor]:
    """Return what each operator of a model makes, by its index and the output's.

    ``sample`` is another one in it; None for none.
    """
    execution = Execution(trace.program, request, torch.device("cpu"))
    if execution.peak_nbytes({}) > MAX_NBYTES:
        raise ReplayError(f"the replay takes more than {MAX_NBYTES >> 20} MiB")
    part, first = execution.parts[-1], entry.call.first_op
    made: dict[int, Content] = {}
    found: dict[tuple[int, int], Tensor] = {}
    before: list[Step] = []

    def keep(step: Step) -> None:
        call = step.call
        pairs = zip(call.outputs, call.signature.outputs, strict=True)
        for output, (storage, geometry) in enumerate(pairs):
            key = call.number, output
            if storage in part.memory:
                found[key] = part.memory.tensor(storage, geometry).clone()
            elif storage in made:
                found[key] = build_tensor(geometry, made[storage]).clone()

    def on_step(step: Step) -> None:
        if step.call.number < first:
            return
        if before:
            keep(before[-1])
        elif sample is not None:
            tensor = entry.tensor
            if tensor.storage_id not in part.memory:
                raise ReplayError("the model does not read the batch")
            own = part.memory.tensor(tensor.storage_id, tensor.geometry)
            change_sample(own, entry.dim, sample)
        before.append(step)

    part.on_step = on_step
    with RealTorch():
        deque(execution.run(made.__setitem__), maxlen=0)
        keep(before[-1])
        runs = {s.call.number for s in before if s.kind == StepKind.RUN}
        return {key: one for key, one in found.items() if key[0] in runs}


def describe_overlap(made: Versions, inputs: tuple[TensorMetadata, ...]) -> str | None:
    """Return how many elements depend on both samples, as text; None if none does.

    "" if they may: in a sum over the batch, or a table of pairs of samples.
    """
    usual, first, second = made
    one, other = differ(usual, first), differ(usual, second)
    both = int((one & other).sum())
    if not both:
        return None
    widest = max((tensor.numel for tensor in inputs), default=0)
    is_reduced = 2 * usual.numel() <= widest and not bool((one & ~other).any())
    is_pairs = 4 * both <= int(one.sum())  # a table of similarities
    if is_reduced or is_pairs or not usual.dim():
        return ""
    shape = format_shape(tuple(usual.shape))
    return f"{both:,} of {usual.numel():,} elements of {shape} depend on two of them"


def differ(one: Tensor, other: Tensor) -> Tensor:
    """Return where two tensors differ."""
    if one.is_floating_point():
        return ~torch.isclose(one, other, rtol=1e-4, atol=1e-6, equal_nan=True)
    return one != other


def change_sample(tensor: Tensor, dim: int, sample: int) -> None:
    """Write other numbers to one sample of a tensor."""
    own = tensor.select(dim, sample)
    if own.is_floating_point():
        own.mul_(-0.7).add_(0.31)
    elif own.dtype != torch.bool:
        rolled = own.flatten().roll(1).reshape(own.shape)
        own.copy_(torch.where(own > 0, own - 1, own) if rolled.equal(own) else rolled)
