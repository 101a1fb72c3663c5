"""Find what a user should know of a recording, and note it with its line.

``self.heads = [nn.Linear(4, 2)]`` runs, and its layers are never trained: the trace has
a note on that line. These notes are found when a recording ends, from its live modules
and what it noticed; ``cost/wrong`` finds what follows from the program alone. Read
``find_notes`` first.
"""

import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from torch import nn

from meta_magic.recording.rows.module_trees import Tree
from meta_magic.recording.rows.writers import Writers
from meta_magic.session.device_notes import find_device_notes
from meta_magic.session.program_builder import describe_failures
from meta_magic.session.raised_calls import USERS, home_of
from meta_magic.torch_private.module_internals import (
    children_of,
    is_made,
    parameters_of,
    pick_own,
)
from meta_magic.trace.notes import Note, sort_notes
from meta_magic.trace.program import Program
from meta_magic.trace.sequences import OpCalls
from meta_magic.trace.units import format_bytes, format_flops

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
