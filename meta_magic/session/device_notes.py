"""Note how a cell that names devices would behave differently on real ones.

``model.to("cuda")(torch.ones(2, 3))`` fails on a real GPU, as the input stays on the
CPU. In a recording all is on meta and it runs; a note on its line says that it fails.
Read ``find_device_notes`` first.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Final

import torch

from meta_magic.errors import ReplayError
from meta_magic.recording.identities.tensors import LiveGeometry
from meta_magic.recording.intercept.moves import join_placements
from meta_magic.recording.signatures.entries import OpTable
from meta_magic.replaying.operators import find_function
from meta_magic.replaying.program_calls import ProgramCalls
from meta_magic.trace.derived_facts import find_on_meta
from meta_magic.trace.notes import FAILS, Note
from meta_magic.trace.program import Program
from meta_magic.trace.sequences import OpCalls
from meta_magic.trace.signature import CPU, META, Geometry, Signature

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
