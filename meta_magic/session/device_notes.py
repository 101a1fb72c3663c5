"""Notes on the devices that a cell names: what would fail, or have other numbers."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

import torch

from meta_magic.errors import ReplayError
from meta_magic.recording.as_device.joined_places import join_places
from meta_magic.recording.identities.geometries import LiveGeometry
from meta_magic.recording.signatures.entries import OpTable
from meta_magic.replaying.operators import find_function
from meta_magic.replaying.program_calls import ProgramCalls
from meta_magic.trace.derived_facts import find_on_meta
from meta_magic.trace.notes import FAILS, Note
from meta_magic.trace.program import Program
from meta_magic.trace.sequences import OpCalls
from meta_magic.trace.signature import Geometry, Signature

CPU: Final = torch.device("cpu")
META: Final = torch.device("meta")
COPY: Final = "aten._to_copy.default"
WRITE: Final = "aten.copy_.default"

NO_VALUES: Final = (
    "{} needs values of a tensor that was put on 'meta' by name: on the CPU, too, it "
    "has none there, and this line raises an error. Leave 'meta' out, or fill it by "
    "to_empty or load_state_dict(assign=True)"
)
MIXED: Final = (
    "{} took a tensor that was put on 'meta' by name, with one that was not: on the "
    "CPU this line raises an error, or gives what lies in memory"
)


class Clash(NamedTuple):
    """What an operator took that would lie on the CPU, where it must not.

    Attributes:
        unnamed: Which of its inputs.
        place: The device on which another one lies.
    """

    unnamed: frozenset[int]
    place: torch.device


def find_place_notes(program: Program, *, has_saved: bool) -> Iterator[Note]:
    """Yield what the devices mean that a cell names; nothing where it names none.

    Args:
        program: The recording.
        has_saved: Whether values were written to a file.
    """
    yield from find_from_meta(program)
    signatures = program.signatures
    named = {g.place for s in signatures for g in (*s.inputs, *s.outputs)}
    if not named <= {None, CPU}:
        yield from find_unnamed(program)
        yield from find_drawn(program, has_saved=has_saved)


def find_from_meta(program: Program) -> Iterator[Note]:
    """Yield a note for each line that needs values of what was put on meta by name."""
    found = find_on_meta(program)
    if not found:
        return
    ops, recorded = OpCalls(program), ProgramCalls(program)
    asked = {evaluation.call for evaluation in program.evaluations}
    texts: dict[tuple[str, int | None], None] = {}
    for index in range(len(recorded)):
        signature, storages = recorded.tensors(index)
        on_meta = [s in found for s in storages[: len(signature.inputs)]]
        if not any(on_meta):
            continue
        is_moved = signature.op == COPY and signature.outputs[0].place is not None
        call = ops[index]
        if index in asked or is_moved:
            text = NO_VALUES.format(call.function or call.op)
            texts[text, call.line] = None
        elif is_mix(signature, on_meta):
            texts[MIXED.format(call.function or call.op), call.line] = None
    for text, line in texts:
        yield Note(kind=FAILS, text=text, line=line)


def is_mix(signature: Signature, on_meta: Sequence[bool]) -> bool:
    """Whether torch refuses an operator whose other tensors do not lie on meta.

    Args:
        signature: What is called.
        on_meta: Of each of its inputs whether that lies on meta by name.
    """
    if signature.op == WRITE:  # what comes from meta is no copy, what goes there is
        return on_meta[-1] and not on_meta[0]
    pairs = zip(signature.inputs, on_meta, strict=True)
    return is_refused(
        signature.op,
        [replace(g, place=META if there else g.place or CPU) for g, there in pairs],
    )


def find_unnamed(program: Program) -> Iterator[Note]:
    """Yield a note for each line where what would lie on the CPU met an accelerator."""
    clashes = {i: find_clash(s) for i, s in enumerate(program.signatures)}
    if not any(clashes.values()):
        return
    ops, recorded, noted = OpCalls(program), ProgramCalls(program), set()
    own: set[int] = set()  # what autograd made of its own accord, and what comes of it
    for index, number in enumerate(program.signature_numbers()):
        signature, storages = recorded.tensors(index)
        inputs = storages[: len(signature.inputs)]
        clash = clashes[number]
        if clash is not None and not own.issuperset(inputs[i] for i in clash.unnamed):
            call = ops[index]
            if (call.line, clash.place) not in noted:
                noted.add((call.line, clash.place))
                yield Note(
                    kind=FAILS,
                    text=f"{call.op} took a tensor that no device was named for, with "
                    f"one on {clash.place}: for real it would lie on the CPU, and this "
                    "would fail",
                    line=call.line,
                )
        if ops.phase(index) == "backward" or not own.isdisjoint(inputs):
            own.update(storages[len(inputs) :])


def find_clash(signature: Signature) -> Clash | None:
    """Return what an operator took that would be refused if it lay on the CPU."""
    named = [g.place for g in signature.inputs if g.place not in (None, CPU)]
    unnamed = {i for i, g in enumerate(signature.inputs) if is_unnamed(g)}
    if not named or not unnamed or named[0] is None:
        return None
    on_cpu = [
        replace(g, place=CPU) if i in unnamed else g
        for i, g in enumerate(signature.inputs)
    ]
    is_clash = is_refused(signature.op, on_cpu)
    return Clash(frozenset(unnamed), named[0]) if is_clash else None


def is_refused(op: str, inputs: Iterable[Geometry]) -> bool:
    """Whether torch refuses an operator, because its tensors lie on two devices."""
    try:
        join_places(OpTable(find_function(op)), [*map(LiveGeometry, inputs)])
    except ReplayError:  # no operator of torch's
        return False
    except RuntimeError:
        return True
    return False


def is_unnamed(geometry: Geometry) -> bool:
    """Whether no device was named for a tensor on meta that could have one."""
    is_meta = geometry.device.type == "meta"
    return geometry.place is None and is_meta and geometry.stride is not None


def find_drawn(program: Program, *, has_saved: bool) -> Iterator[Note]:
    """Yield a note if values rest on numbers that an accelerator is to draw.

    Args:
        program: The recording.
        has_saved: Whether values were written to a file: of any of its tensors.
    """
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
            place = recorded.tensors(first)[0].accelerator
            text = (
                f"values rest on random numbers of {place}, and are not those that it "
                "would give: the CPU drew others"
            )
            yield Note(kind="drawn", text=text, line=recorded.line(first))
            return
        drawn.update(storages[len(inputs) :], (inputs[i] for i in signature.writes))
