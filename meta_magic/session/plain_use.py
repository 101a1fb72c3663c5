"""Which variables hold what a recorded cell made, and which plain code made of that.

Plain code between cells has meta tensors before it: ``y = model(x)`` in a cell without
``%%meta`` ends in an error of torch, or gives a tensor that will never have values.
"""

from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from types import FrameType
from typing import Any, NamedTuple

from torch import Tensor, nn

from meta_magic.errors import MissingValueError, ReplayError
from meta_magic.recording.identities.origins import find_origin
from meta_magic.recording.identities.tensors import TensorRegistry
from meta_magic.session.note_finders import find_maker
from meta_magic.session.operand_names import read_variables
from meta_magic.torch_private.modes import DisableTorchFunction
from meta_magic.trace.program import Program
from meta_magic.trace.sequences import OpCalls
from meta_magic.trace.signature import SourcePosition


class Recorded(NamedTuple):
    """A variable that holds what a recorded cell made.

    Attributes:
        name: Its name.
        is_module: Whether it is a module, else a tensor.
        made_at: Where its first tensor was made; None if that is not known.
    """

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
            found = find_origin_of(tensor)
            if found is not None:
                yield Recorded(name, is_module, find_position(*found))
                break


def is_without_values(value: object) -> bool:
    """Whether a value is a tensor on meta that no recording made."""
    is_on_meta = isinstance(value, Tensor) and value.is_meta
    return is_on_meta and find_origin_of(value) is None


def find_origin_of(value: object) -> tuple[Program, int] | None:
    """Return the program that made a meta tensor, and its storage there."""
    try:
        if not isinstance(value, Tensor) or not value.is_meta:
            return None
        found = find_origin(value.untyped_storage())
    except (RuntimeError, NotImplementedError, ValueError):  # it has no storage
        return None
    if found is None:
        return None
    program, storage = found[0].program, found[1]
    while True:  # a later recording may only have read it
        earlier = next((i for i in program.imports if i.storage == storage), None)
        if earlier is None:
            return program, storage
        program, storage = earlier.program, earlier.origin


def find_position(program: Program, storage: int) -> SourcePosition | None:
    """Return where a program made a storage."""
    index = find_maker(storage, program)
    return None if index is None else OpCalls(program)[index].position


def describe_outside(
    error: MissingValueError,
    registry: TensorRegistry,
    frame: FrameType | None,
    program: Program,
) -> str:
    """Return in words which variable lacks the values that a replay wanted.

    Args:
        error: What the replay raised.
        registry: Knows the storages of tensors.
        frame: The frame that asked for a value.
        program: What was recorded so far.

    Returns:
        That, after a space; "" if no variable there holds it.
    """
    cause = error.__cause__
    storage = cause.storage if isinstance(cause, ReplayError) else None
    if frame is None or storage is None or find_maker(storage, program) is not None:
        return ""
    with DisableTorchFunction():
        for name, value in read_variables(frame).items():
            is_outside = is_without_values(value)
            if is_outside and registry.find_storages([value]) == [storage]:
                by = describe_maker(value)
                return (
                    f". It is `{name}`, which plain code made{by}: put %%meta on that "
                    "cell, or that line into the block of record()"
                )
    return ""


def describe_maker(value: Any) -> str:
    """Return in words which function gave a tensor, as far as autograd knows."""
    node = value.grad_fn
    return "" if node is None else f" (by {node.name().removesuffix('Backward0')})"
