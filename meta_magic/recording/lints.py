"""Notes on what is legal and rarely meant, each with the line where it happened."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Final

from torch import nn

from meta_magic.recording.module_numbers import ModuleNumbers
from meta_magic.recording.tensors import TensorRegistry
from meta_magic.trace.calls import OpCalls
from meta_magic.trace.program import HEADER, Program
from meta_magic.trace.records import Note
from meta_magic.trace.signature import Signature
from meta_magic.trace.units import format_bytes, format_flops, format_shape

__all__ = [
    "find_attributes",
    "find_evaluated",
    "find_math",
    "find_silent_broadcasts",
    "find_sizes_assumed",
    "find_untied",
]

READ: Final = frozenset({"aten._local_scalar_dense.default", "aten._to_copy.default"})
"""Operators that give a value away, where the others give a size."""

PAIRWISE: Final = (
    "add",
    "sub",
    "mul",
    "div",
    "pow",
    "eq",
    "ne",
    "gt",
    "lt",
    "ge",
    "le",
)
BINARY: Final = frozenset(
    {f"aten.{name}.Tensor" for name in PAIRWISE}
    | {"aten.maximum.default", "aten.minimum.default", "aten.mse_loss.default"}
)


def find_evaluated(program: Program) -> Iterator[Note]:
    """Yield a note for each line that asked for values, by what asked."""
    if not program.evaluations:
        return
    ops = OpCalls(program)
    grouped = defaultdict(list)
    for evaluation in program.evaluations:
        call = ops[evaluation.call]
        kind = "value" if call.op in READ else "size"
        grouped[call.line, call.function or call.op, kind].append(evaluation)
    for (line, name, kind), many in grouped.items():
        times = f", {len(many):,} times" if len(many) > 1 else ""
        assumed = ops[many[0].call].assumed or ""
        yield Note(
            kind="evaluated",
            text=f"{name} was evaluated{times}: its {kind} comes from "
            f"{max(e.n_calls for e in many):,} operator calls on the CPU "
            f"({format_bytes(max(e.nbytes for e in many))}, "
            f"{format_flops(max(e.flops for e in many))}), and what follows depends on "
            "data" + (assumed and f", and on what was assumed ({assumed})"),
            line=line,
        )


def find_sizes_assumed(program: Program) -> Iterator[Note]:
    """Yield a note for each line and assumption on which sizes rest."""
    if not program.assumptions:
        return
    ops, grouped = OpCalls(program), defaultdict(list)
    for assumption in program.assumptions:
        call = ops[assumption.call]
        name = call.function or call.op
        grouped[name, assumption.text, call.line].append(assumption)
    for (name, text, line), many in grouped.items():
        times = f", {len(many):,} times" if len(many) > 1 else ""
        yield Note(
            kind="assumed",
            text=f"the size that {name} gives was assumed{times}: {text}, so "
            f"{many[0].n_true:,} of {many[0].numel:,} elements are true, and what "
            "follows rests on that",
            line=line,
        )


def find_math(program: Program) -> Iterator[Note]:
    """Yield a note for each line and reason for which attention is no fused kernel."""
    if all(": " not in choice.text for choice in program.kernels):
        return
    ops = OpCalls(program)
    found: dict[tuple[str, int | None], None] = {}
    for choice in program.kernels:
        kernel, _, reason = choice.text.partition(": ")
        if reason:
            device = kernel.rpartition(" ")[2]
            text = f"attention is math on {device}: {reason}"
            found[text, ops[choice.first_op].line] = None
    for text, line in found:
        yield Note(kind="attention", text=text, line=line)


def find_silent_broadcasts(program: Program) -> Iterator[Note]:
    """Yield a note for each line where ``(n, 1)`` met ``(n,)`` and made ``(n, n)``."""
    suspects = {i for i, s in enumerate(program.signatures) if is_silent_broadcast(s)}
    if not suspects:
        return
    ops = OpCalls(program)
    lines = set()
    for index, number in enumerate(program.signature_numbers()):
        call = ops[index] if number in suspects else None
        if call is not None and call.line not in lines and call.phase != "backward":
            lines.add(call.line)
            left, right = (format_shape(tensor.shape) for tensor in call.inputs)
            yield Note(
                kind="broadcast",
                text=f"{call.op} broadcast {left} with {right} to "
                f"{format_shape(call.outputs[0].shape)}: a column met a row",
                line=call.line,
            )


def is_silent_broadcast(signature: Signature) -> bool:
    """Whether a column ``(n, 1)`` meets a row ``(n,)`` and makes a square."""
    if signature.op not in BINARY or len(signature.inputs) < len("ab"):
        return False
    row, column = sorted((g.shape for g in signature.inputs), key=len)
    return len(row) == 1 and row[0] > 1 and column == (row[0], 1)


def find_untied(
    registered: Sequence[tuple[int, str, int]],
    numbers: ModuleNumbers,
    registry: TensorRegistry,
    program: Program,
) -> Iterator[Note]:
    """Yield a note for each parameter that stood in two places and no longer does.

    Args:
        registered: (module number, name, storage) as parameters were registered.
        numbers: The modules that are still there.
        registry: Numbers of storages.
        program: Tells which line made the storage that a parameter has now.
    """
    modules = dict(numbers.living())
    places_by_storage: dict[int, dict[tuple[int, str], None]] = defaultdict(dict)
    for number, name, storage in registered:
        places_by_storage[storage].setdefault((number, name))
    for places in places_by_storage.values():
        now = {
            f"{type(modules[n]).__name__}.{name}": storage
            for n, name in places
            for storage in storages_now(modules.get(n), name, registry)
        }
        if len(now) > 1 and len(set(now.values())) > 1:
            yield Note(
                kind="untied",
                text=f"{' and '.join(now)} were one parameter and came untied",
                line=line_that_made(max(now.values()), program),
            )


def storages_now(
    module: nn.Module | None, name: str, registry: TensorRegistry
) -> Iterator[int]:
    """Yield the storage on which a parameter lies now, if it is still there."""
    parameter = None if module is None else module._parameters.get(name)
    if parameter is not None and not nn.parameter.is_lazy(parameter):
        yield registry.storage_by_tensor[registry.read(parameter)[0]]


def find_attributes(
    attributes: Sequence[tuple[str, str, int]], program: Program
) -> Iterator[Note]:
    """Yield a note for each tensor that a module holds but will not take along."""
    for class_name, name, storage in attributes:
        yield Note(
            kind="attribute",
            text=f"{class_name}.{name} is a tensor but neither parameter nor buffer: "
            "it will not move with the module (register_buffer would)",
            line=line_that_made(storage, program),
        )


def line_that_made(storage: int, program: Program) -> int | None:
    """Return the cell's line of the first operator that returned a storage."""
    words = memoryview(program.words).cast("I")
    storages = memoryview(program.storage_by_tensor).cast("I")
    for index, number in enumerate(program.signature_numbers()):
        start = program.offsets[index] + HEADER + len(program.signatures[number].inputs)
        end = program.offsets[index + 1]
        if any(storages[number] == storage for number in words[start:end]):
            return program.places[words[program.offsets[index] + 1] - 1].line
    return None
