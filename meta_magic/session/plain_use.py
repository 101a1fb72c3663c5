"""Find meta tensors in the variables of plain code, and say which cell made them.

``y = model(x)`` in a cell without ``%%meta`` ends in an error of torch if a recorded
cell made ``model``, or gives a tensor that never has values: ``find_recorded`` and
``describe_outside`` are for messages that say so.
"""

from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from types import FrameType
from typing import Any, NamedTuple

from torch import Tensor, nn

from meta_magic.errors import MissingValueError, ReplayError
from meta_magic.recording.identities.call_sites import read_variables
from meta_magic.recording.identities.origins import find_origin
from meta_magic.recording.identities.tensors import TensorRegistry
from meta_magic.session.note_finders import find_maker
from meta_magic.torch_private.modes import DisableTorchFunction
from meta_magic.trace.program import Program
from meta_magic.trace.sequences import OpCalls
from meta_magic.trace.signature import SourcePosition


class Recorded(NamedTuple):
    """A variable that holds a tensor or module of a recorded cell."""

    name: str
    is_module: bool
    made_at: SourcePosition | None


def find_recorded(
    names: Iterable[str], namespace: Mapping[str, object]
) -> Iterator[Recorded]:
    """Yield the variables of some names that hold what a recorded cell made."""
    for name in names:
        value = namespace.get(name)
        is_module = isinstance(value, nn.Module)
        held: Iterable[Any] = [value]
        if isinstance(value, nn.Module):
            held = chain(value.parameters(), value.buffers())
        for tensor in held:
            found = _find_origin_of(tensor)
            if found is not None:
                program, storage = found
                index = find_maker(storage, program)
                at = None if index is None else OpCalls(program)[index].position
                yield Recorded(name, is_module, at)
                break


def is_without_values(value: object) -> bool:
    """Whether a value is a tensor on meta that no recording made."""
    is_on_meta = isinstance(value, Tensor) and value.is_meta
    return is_on_meta and _find_origin_of(value) is None


def _find_origin_of(value: object) -> tuple[Program, int] | None:
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
