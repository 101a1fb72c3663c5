"""Notes on what is legal and rarely meant, each with the line where it happened."""

import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from torch import nn

from meta_magic.recording.identities.module_numbers import ModuleNumbers
from meta_magic.recording.identities.tensors import TensorRegistry
from meta_magic.recording.rows.findings import Findings
from meta_magic.recording.rows.module_trees import Tree
from meta_magic.recording.signatures.entries import Entry
from meta_magic.session.device_notes import find_place_notes
from meta_magic.session.program_builder import Written, describe_failures
from meta_magic.torch_private.module_internals import parameters_of
from meta_magic.trace.calls import OpCall
from meta_magic.trace.notes import Note
from meta_magic.trace.program import HEADER, Program
from meta_magic.trace.sequences import OpCalls
from meta_magic.trace.signature import Signature
from meta_magic.trace.units import format_bytes, format_flops, format_shape


class Outside(NamedTuple):
    """What happened around a recording.

    Attributes:
        left_open: What had to be put right in torch, in words.
        threads: Names of the threads that ran meanwhile.
        tasks: Names of what ran in tasks of an event loop.
        has_failed: Whether it ended by an error.
    """

    left_open: Sequence[str]
    threads: Sequence[str]
    tasks: Sequence[str]
    has_failed: bool


READ: Final = frozenset({"aten._local_scalar_dense.default", "aten._to_copy.default"})
"""Operators that give a value away, where the others give a size."""


def find_notes(
    written: Written, program: Program, trees: Sequence[Tree], outside: Outside
) -> tuple[Note, ...]:
    """Return all notes of a recording, in order of line, those without one last.

    Args:
        written: The parts that wrote it.
        program: What they wrote.
        trees: The module trees.
        outside: What happened around it.
    """
    notes = written.findings.notes
    found = [
        *notes,
        *(Note(kind="inference", text=t, line=None) for t in written.imports.doubts),
        *find_silent_broadcasts(program),
        *find_evaluated(program),
        *find_sizes_assumed(program),
        *find_math(program),
        *find_place_notes(program, has_saved=any(n.kind == "save" for n in notes)),
        *find_untied(
            written.calls.registered, written.numbers, written.registry, program
        ),
        *(note for tree in trees for note in find_attributes(tree.attributes, program)),
        *([] if outside.has_failed else find_failures(written.findings)),
        *find_outside(outside),
        *find_unasked(written.rows.entries),
        *find_unseen(written.findings),
    ]
    return tuple(sorted(found, key=by_line))


def by_line(note: Note) -> int:
    """Order notes by line, those without one last."""
    return note.line if note.line is not None else sys.maxsize


def find_failures(findings: Findings) -> Iterator[Note]:
    """Yield a note for each operator that failed, and the cell went on."""
    for text, line in describe_failures(findings):
        yield Note(kind="failed", text=text, line=line)


def find_outside(outside: Outside) -> Iterator[Note]:
    """Yield what was left open in torch, and the threads that were not recorded."""
    for text in outside.left_open:
        yield Note(kind="state", text=text, line=None)
    for name in dict.fromkeys(outside.threads):
        yield Note(
            kind="thread",
            text=f"what thread {name!r} did was not recorded, and was real: "
            "torch's modes belong to one thread",
            line=None,
        )
    for name in outside.tasks:
        yield Note(
            kind="thread",
            text=f"what task {name!r} did was not recorded, and was real: a cell is "
            "what it awaits itself (see await, without create_task or gather)",
            line=None,
        )


def find_unasked(entries: Sequence[Entry]) -> Iterator[Note]:
    """Yield how many calls nobody knows whether the CPU refuses them."""
    n_unasked = len([entry for entry in entries if entry.is_unasked])
    if n_unasked:
        yield Note(
            kind="unasked",
            text=f"{n_unasked:,} calls that differ were taken as meta takes "
            "them: asking the CPU would have been over a quarter of the cell's time",
            line=None,
        )


def find_unseen(findings: Findings) -> Iterator[Note]:
    """Yield a note for each class of tensors whose operators were not recorded."""
    for class_name, count in findings.n_unseen.items():
        yield Note(
            kind="foreign",
            text=f"{count:,} operators on {class_name} were not recorded",
            line=None,
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
        kind = "value" if ops[many[0].call].op in READ else "size"
        n_true, numel = f"{many[0].n_true:,}", f"{many[0].numel:,}"
        so = f", so {n_true} of {numel} elements are true"
        if kind == "value":
            is_given = many[0].value is not None
            so = "" if is_given else f", {n_true} in all of {numel} numbers"
        yield Note(
            kind="assumed",
            text=f"the {kind} that {name} gives was assumed{times}: {text}{so}, and "
            "what follows rests on that",
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
    places_by_storage: dict[int, dict[tuple[int, str], None]] = defaultdict(dict)
    for number, name, storage in registered:
        places_by_storage[storage][number, name] = None
    shared = [places for places in places_by_storage.values() if len(places) > 1]
    modules = dict(numbers.living()) if shared else {}
    for places in shared:
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
    parameter = None if module is None else parameters_of(module).get(name)
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
    index = find_maker(storage, program)
    if index is None:
        return None
    words = memoryview(program.words).cast("I")
    return program.places[words[program.offsets[index] + 1] - 1].line


def find_maker(storage: int, program: Program) -> int | None:
    """Return the first operator call that returned a storage."""
    words = memoryview(program.words).cast("I")
    storages = memoryview(program.storage_by_tensor).cast("I")
    for index, number in enumerate(program.signature_numbers()):
        start = program.offsets[index] + HEADER + len(program.signatures[number].inputs)
        end = program.offsets[index + 1]
        if any(storages[number] == storage for number in words[start:end]):
            return index
    return None


PAIRWISE: Final = "add sub mul div pow eq ne gt lt ge le"
BINARY: Final = frozenset(
    {f"aten.{name}.Tensor" for name in PAIRWISE.split()}
    | {"aten.maximum.default", "aten.minimum.default", "aten.soft_margin_loss.default"}
)
EXPAND: Final = "aten.expand.default"
FUNCTIONAL: Final = "torch.nn.functional."
"""Where the losses are that expand what they are given."""

SQUARING: Final = frozenset({"one_hot", "outer", "ger"})
"""Functions of torch that are there to make a square of a column and a row."""


def find_silent_broadcasts(program: Program) -> Iterator[Note]:
    """Yield a note for each line where ``(n, 1)`` met ``(n,)`` and made ``(n, n)``."""
    suspects = {i for i, s in enumerate(program.signatures) if is_suspect(s)}
    if not suspects:
        return
    ops, lines = OpCalls(program), set()
    for index, number in enumerate(program.signature_numbers()):
        call = ops[index] if number in suspects else None
        if call is None or call.line in lines or call.phase == "backward":
            continue
        text = describe_meeting(ops, call)
        if text is not None:
            lines.add(call.line)
            yield Note(kind="broadcast", text=text, line=call.line)


def is_suspect(signature: Signature) -> bool:
    """Whether a column meets a row, or is expanded as a loss does it before."""
    shapes = [geometry.shape for geometry in signature.inputs]
    if signature.op == EXPAND:
        (n, *_) = made = signature.outputs[0].shape or (0,)
        return n > 1 and made == (n, n) and shapes in ([(n, 1)], [(n,)])
    if signature.op not in BINARY or len(shapes) < len("ab"):
        return False
    row, column = sorted(shapes, key=len)
    return len(row) == 1 and row[0] > 1 and column == (row[0], 1)


def describe_meeting(ops: OpCalls, call: OpCall) -> str | None:
    """Return in words what a call broadcast that nobody asked for; None if nothing."""
    name, function = call.op, call.function or ""
    given, n = list(call.inputs), call.inputs[0].shape[0]
    if call.op == EXPAND:  # by a loss, of both that it was given
        if not function.startswith(FUNCTIONAL):
            return None
        other = ops[min(call.index + 1, len(ops) - 1)]
        given += other.inputs
        if other.op != EXPAND or {t.shape for t in given} != {(n,), (n, 1)}:
            return None
        name = function
    elif function.rpartition(".")[2] in SQUARING:
        return None
    left, right = (format_shape(tensor.shape) for tensor in given)
    return f"{name} broadcast {left} with {right} to ({n}, {n}): a column met a row"
