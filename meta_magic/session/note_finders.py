"""Find what a user should know of a recording, and note it with its line.

``self.heads = [nn.Linear(4, 2)]`` runs, and its layers are never trained: the trace has
a note on that line. These notes are found when a recording ends, from its live modules
and what it noticed; ``cost/wrong`` finds what follows from the program alone. Read
``find_notes`` first.

``model.to("cuda")(torch.ones(2, 3))`` fails on a real GPU, as the input stays on the
CPU; on meta it runs, so a note says it (``find_device_notes``). ``y = model(x)`` in a
cell without ``%%meta`` ends in an error of torch if a recorded cell made ``model``:
``describe_outside`` says which cell did.
"""

import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from types import FrameType
from typing import Final, NamedTuple

import torch
from torch import Tensor, nn

from meta_magic.errors import MissingValueError, ReplayError
from meta_magic.recording.identities.call_sites import read_variables
from meta_magic.recording.identities.origins import find_origin
from meta_magic.recording.identities.tensors import LiveGeometry, TensorRegistry
from meta_magic.recording.intercept.moves import join_placements
from meta_magic.recording.rows.module_trees import Tree
from meta_magic.recording.rows.writers import Writers
from meta_magic.recording.signatures.entries import OpTable
from meta_magic.replaying.operators import find_function
from meta_magic.replaying.program_calls import ProgramCalls
from meta_magic.session.program_builder import describe_failures
from meta_magic.session.raised_calls import USERS, home_of
from meta_magic.torch_private.modes import DisableTorchFunction
from meta_magic.torch_private.module_internals import (
    children_of,
    is_made,
    parameters_of,
    pick_own,
)
from meta_magic.trace.calls import OpCalls
from meta_magic.trace.notes import FAILS, Note, sort_notes
from meta_magic.trace.program import Program, find_on_meta
from meta_magic.trace.signature import CPU, META, Geometry, Signature
from meta_magic.trace.units import format_bytes, format_flops

COPY: Final = "aten._to_copy.default"
WRITE: Final = "aten.copy_.default"

NO_VALUES: Final = (
    "{} needs values of a tensor that was put on 'meta' by name: on the CPU, too, it "
    "has none there, and this line raises an error. Leave 'meta' out, or fill it by "
    "to_empty or load_state_dict(assign=True)"
)
MIXED: Final = (
    "{} took a tensor that was put on 'meta' by name, with one that was not: on the "
    "CPU this line raises an error, or returns uninitialized memory"
)


def find_device_notes(program: Program, *, has_saved: bool) -> Iterator[Note]:
    """Yield notes on the devices that a cell names."""
    yield from _find_from_meta(program)
    signatures = program.signatures
    named = {g.placement for s in signatures for g in (*s.inputs, *s.outputs)}
    if not named <= {None, CPU}:
        yield from _find_unnamed(program)
        yield from _find_drawn(program, has_saved=has_saved)


def _find_from_meta(program: Program) -> Iterator[Note]:
    """Yield a note for each line that needs values of a tensor named to be on meta."""
    found = find_on_meta(program)
    if not found:
        return
    ops, recorded = OpCalls(program), ProgramCalls(program)
    asked = {evaluation.call for evaluation in program.evaluations}
    texts: dict[tuple[str, int | None], None] = {}
    known: dict[tuple[int, ...], bool] = {}  # by signature and which inputs
    for index in range(len(recorded)):
        signature, storages = recorded.tensors(index)
        on_meta = [s in found for s in storages[: len(signature.inputs)]]
        if not any(on_meta):
            continue
        is_moved = signature.op == COPY and signature.outputs[0].placement is not None
        if index in asked or is_moved:
            template = NO_VALUES
        else:
            key = id(signature), *on_meta
            if key not in known:
                known[key] = _is_mixed(signature, on_meta)
            if not known[key]:
                continue
            template = MIXED
        call = ops[index]
        texts[template.format(call.function or call.op), call.line] = None
    for text, line in texts:
        yield Note(kind=FAILS, text=text, line=line)


def _is_mixed(signature: Signature, on_meta: Sequence[bool]) -> bool:
    """Whether torch refuses an operator because only some inputs are named on meta."""
    if signature.op == WRITE:  # torch copies to meta, but not from there
        return on_meta[-1] and not on_meta[0]
    pairs = zip(signature.inputs, on_meta, strict=True)
    placed = [
        replace(g, placement=META if there else g.placement or CPU)
        for g, there in pairs
    ]
    return _is_refused(signature.op, placed)


def _find_unnamed(program: Program) -> Iterator[Note]:
    """Yield a note for each line that mixes a GPU's tensor with an unplaced one."""
    clashes = {i: _find_clash(s) for i, s in enumerate(program.signatures)}
    if not any(clashes.values()):
        return
    ops, recorded, noted = OpCalls(program), ProgramCalls(program), set()
    own: set[int] = set()  # storages that autograd made, and all computed from them
    for index, number in enumerate(program.signature_numbers()):
        signature, storages = recorded.tensors(index)
        inputs = storages[: len(signature.inputs)]
        unnamed, device = clashes[number] or (set(), CPU)
        if not own.issuperset(inputs[i] for i in unnamed):
            call = ops[index]
            if (call.line, device) not in noted:
                noted.add((call.line, device))
                yield Note(
                    kind=FAILS,
                    text=f"{call.op} took a tensor without a named device, and one on "
                    f"{device}: in a real run the first is on the CPU, and "
                    "this fails",
                    line=call.line,
                )
        if ops.phase(index) == "backward" or not own.isdisjoint(inputs):
            own.update(storages[len(inputs) :])


def _find_clash(signature: Signature) -> tuple[set[int], torch.device] | None:
    """Return which inputs without a named device torch would refuse, if any."""
    named = [g.placement for g in signature.inputs if g.placement not in (None, CPU)]
    unnamed = {
        i
        for i, g in enumerate(signature.inputs)
        if g.placement is None and g.device.type == "meta" and g.stride is not None
    }
    if not named or not unnamed or named[0] is None:
        return None
    at = enumerate(signature.inputs)
    on_cpu = [replace(g, placement=CPU) if i in unnamed else g for i, g in at]
    is_clash = _is_refused(signature.op, on_cpu)
    return (unnamed, named[0]) if is_clash else None


def _is_refused(op: str, inputs: Iterable[Geometry]) -> bool:
    """Whether torch refuses an operator because its inputs are on two devices."""
    try:
        join_placements(OpTable(find_function(op)), [*map(LiveGeometry, inputs)])
    except ReplayError:  # not an operator of torch's
        return False
    except RuntimeError:
        return True
    return False


def _find_drawn(program: Program, *, has_saved: bool) -> Iterator[Note]:
    """Yield a note if values were read that depend on random numbers of a GPU."""
    asked = {evaluation.call for evaluation in program.evaluations}
    recorded = ProgramCalls(program)
    first: int | None = None
    drawn: set[int] = set()
    for index in range(len(recorded) if asked or has_saved else 0):
        signature, storages = recorded.tensors(index)
        inputs = storages[: len(signature.inputs)]
        is_drawn = index in recorded.draws_by_call and signature.accelerator
        if not is_drawn and drawn.isdisjoint(inputs):
            continue
        first = index if first is None else first
        if has_saved or index in asked:
            device = recorded.tensors(first)[0].accelerator
            text = (
                f"values rest on random numbers of {device}, and are not those that it "
                "would give: the CPU drew others"
            )
            yield Note(kind="drawn", text=text, line=recorded.line(first))
            return
        drawn.update(storages[len(inputs) :], (inputs[i] for i in signature.writes))


READ: Final = frozenset({"aten._local_scalar_dense.default", "aten._to_copy.default"})
"""Operators whose values are read; all others are evaluated for the result's size."""

PLAIN: Final = frozenset({list, tuple, dict})
"""Containers in which torch finds no modules."""


class Outside(NamedTuple):
    """What happened around a recording."""

    left_open: Sequence[str]
    threads: Sequence[str]
    has_failed: bool


def find_notes(
    written: Writers, program: Program, trees: Sequence[Tree], outside: Outside
) -> tuple[Note, ...]:
    """Return the notes of a recording, each once, by line; those without come last."""
    diagnostics = written.diagnostics
    has_saved = any(note.kind == "save" for note in diagnostics.notes)
    found = [
        *diagnostics.notes,
        *(Note(kind="inference", text=t, line=None) for t in written.imports.caveats),
        *_find_evaluated(program),
        *_find_assumed(program),
        *_find_math(program),
        *find_device_notes(program, has_saved=has_saved),
        *_find_untied(written, program),
        *_find_attributes(trees, program),
        *_find_unregistered(written, program),
        *_find_outside(written, outside),
    ]
    return sort_notes(dict.fromkeys(found))


def _find_outside(written: Writers, outside: Outside) -> Iterator[Note]:
    """Yield notes on failed calls, open modes, and what was not recorded or checked."""
    if not outside.has_failed:
        for text, line in describe_failures(written.diagnostics):
            yield Note(kind="failed", text=text, line=line)
    for text in outside.left_open:
        yield Note(kind="state", text=text, line=None)
    for name in dict.fromkeys(outside.threads):
        yield Note(
            kind="thread",
            text=f"thread {name!r} was not recorded, and ran for real: torch's modes "
            "belong to one thread",
            line=None,
        )
    n_unasked = len(written.diagnostics.unasked)
    if n_unasked:
        yield Note(
            kind="unasked",
            text=f"{n_unasked:,} different calls were not checked on the CPU, which "
            "would have taken over a quarter of the cell's time",
            line=None,
        )
    for class_name, count in written.diagnostics.n_unseen.items():
        yield Note(
            kind="foreign",
            text=f"{count:,} operators on {class_name} were not recorded",
            line=None,
        )


# Values and sizes that depend on data


def _find_evaluated(program: Program) -> Iterator[Note]:
    """Yield a note for each line and function that asked for values."""
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


def _find_assumed(program: Program) -> Iterator[Note]:
    """Yield a note for each line and assumption on which values or sizes rest."""
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


# Operators


def _find_math(program: Program) -> Iterator[Note]:
    """Yield a note for each line and reason for which attention is no fused kernel."""
    if all(": " not in choice.text for choice in program.kernels):
        return
    ops = OpCalls(program)
    found: dict[tuple[str, int | None], None] = {}
    for choice in program.kernels:
        kernel, _, reason = choice.text.partition(": ")
        if reason and not reason.startswith("dropout"):
            device = kernel.rpartition(" ")[2]
            text = f"attention runs no fused kernel on {device}, because {reason}"
            found[text, ops[choice.first_op].line] = None
    for text, line in found:
        yield Note(kind="attention", text=text, line=line)


# Modules


def _find_untied(written: Writers, program: Program) -> Iterator[Note]:
    """Yield a note for each parameter that two modules shared and no longer share."""
    names_by_storage: dict[int, dict[tuple[int, str], None]] = defaultdict(dict)
    for number, name, storage in written.calls.registered:
        names_by_storage[storage][number, name] = None
    shared = [names for names in names_by_storage.values() if len(names) > 1]
    modules = dict(written.numbers.live()) if shared else {}
    for names in shared:
        now: dict[str, int] = {}
        for number, name in names:
            module = modules.get(number)
            parameter = None if module is None else parameters_of(module).get(name)
            if parameter is not None and not nn.parameter.is_lazy(parameter):
                seen = written.registry.read(parameter)
                storage_now = written.registry.storage_by_tensor[seen[0]]
                now[f"{type(module).__name__}.{name}"] = storage_now
        if len(now) > 1 and len(set(now.values())) > 1:
            yield Note(
                kind="untied",
                text=f"{' and '.join(now)} were one parameter and came untied",
                line=_find_line(max(now.values()), program),
            )


def _find_attributes(trees: Sequence[Tree], program: Program) -> Iterator[Note]:
    """Yield a note for each tensor that a module holds but would not move along."""
    for tree in trees:
        for class_name, name, storage in tree.attributes:
            yield Note(
                kind="attribute",
                text=f"{class_name}.{name} is a tensor but neither parameter nor "
                "buffer: it will not move with the module (register_buffer would)",
                line=_find_line(storage, program),
            )


def _find_unregistered(written: Writers, program: Program) -> Iterator[Note]:
    """Yield a note for each plain container with layers that a module does not hold."""
    modules = [module for _, module in written.numbers.live()]
    # Each class is asked once: a model of torch's layers has thousands of modules.
    kinds = {kind: sys.modules.get(kind.__module__) for kind in set(map(type, modules))}
    files = {kind: getattr(home, "__file__", None) for kind, home in kinds.items()}
    users = {kind for kind, file in files.items() if not file or home_of(file) == USERS}
    own = (m for m in modules if type(m) in users and is_made(m))
    suspects = [(m, *pair) for m in own for pair in _list_containers(m)]
    if not suspects:
        return
    live = [*filter(is_made, modules)]
    held = {id(child) for module in live for child in children_of(module).values()}
    held |= {id(p) for module in live for p in parameters_of(module).values()}
    for module, name, items in suspects:
        loose = [item for item in items if id(item) not in held]
        storages = [*filter(None, (_find_trained(item, written) for item in loose))]
        if not storages:
            continue
        kind = type(vars(module)[name]).__name__
        one = type(loose[0]).__name__
        better = "Parameter" if isinstance(loose[0], nn.Parameter) else "Module"
        better += "Dict" if kind == "dict" else "List"
        yield Note(
            kind="unregistered",
            text=f"{type(module).__name__}.{name} is a plain {kind} of {one}: "
            f"parameters() does not have them, so that no optimizer steps them and no "
            f"state_dict has them (nn.{better} would)",
            line=_find_line(storages[0], program),
        )


def _list_containers(
    module: nn.Module,
) -> Iterator[tuple[str, list[nn.Module | nn.Parameter]]]:
    """Yield the plain containers of a user's module, with the layers in them."""
    held = vars(module)
    for name in pick_own(tuple(held)):
        value = held[name]
        if type(value) not in PLAIN:
            continue
        items = [*value.values()] if isinstance(value, dict) else [*value]
        layers = [one for one in items if isinstance(one, nn.Module | nn.Parameter)]
        is_hidden = not isinstance(value, dict) and len(items) == 1
        if layers and not (is_hidden and isinstance(layers[0], nn.Module)):
            yield name, layers


def _find_trained(item: nn.Module | nn.Parameter, written: Writers) -> int | None:
    """Return the storage of a parameter that is to be trained, if there is one."""
    own = [item] if isinstance(item, nn.Parameter) else item.parameters()
    for parameter in own:
        if parameter.requires_grad and not nn.parameter.is_lazy(parameter):
            seen = written.registry.read(parameter)
            return written.registry.storage_by_tensor[seen[0]]
    return None


def _find_line(storage: int, program: Program) -> int | None:
    """Return the cell's line of the first operator that returned a storage."""
    index = find_maker(storage, program)
    if index is None:
        return None
    words = memoryview(program.words).cast("I")
    return program.call_sites[words[program.offsets[index] + 1] - 1].line


def find_maker(storage: int, program: Program) -> int | None:
    """Return the first operator call that returned a storage."""
    calls = program.walk_calls()
    return next((index for index, _, _, made in calls if storage in made), None)


def is_without_values(value: object) -> bool:
    """Whether a value is a tensor on meta that no recording made."""
    is_on_meta = isinstance(value, Tensor) and value.is_meta
    return is_on_meta and find_first_origin(value) is None


def find_first_origin(value: object) -> tuple[Program, int] | None:
    """Return the program that made a tensor, and its storage there, if one did."""
    try:
        if not isinstance(value, Tensor) or not value.is_meta:
            return None
        found = find_origin(value.untyped_storage())
    except (RuntimeError, NotImplementedError, ValueError):  # it has no storage
        return None
    if found is None:
        return None
    program, storage = found[0].program, found[1]
    while True:  # back to the recording that made it: later ones import it
        earlier = next((i for i in program.imports if i.storage == storage), None)
        if earlier is None:
            return program, storage
        program, storage = earlier.program, earlier.origin


def describe_outside(
    error: MissingValueError,
    registry: TensorRegistry,
    frame: FrameType | None,
    program: Program,
) -> str:
    """Say which variable of plain code lacks the values that a replay needs; or ""."""
    cause = error.__cause__
    storage = cause.storage if isinstance(cause, ReplayError) else None
    if frame is None or storage is None or find_maker(storage, program) is not None:
        return ""
    with DisableTorchFunction():
        for name, value in read_variables(frame).items():
            is_outside = is_without_values(value)
            if is_outside and registry.find_storages([value]) == [storage]:
                node = getattr(value, "grad_fn", None)
                maker = "" if node is None else node.name().removesuffix("Backward0")
                by = maker and f" (by {maker})"
                return (
                    f". It is `{name}`, which plain code made{by}: put %%meta on that "
                    "cell, or that line into the block of record()"
                )
    return ""
