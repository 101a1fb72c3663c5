"""Which storages autograd saved for the backward pass.

Found in what backward calls read. Where no backward pass was recorded, autograd itself
is asked: the call is made again on meta tensors, and a hook sees what is saved. Read
``find_saved`` first.
"""

from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch
from torch import Tensor

from meta_magic.cost.program_columns import PHASES, Columns, Flags, Integers
from meta_magic.torch_private.dynamo import KernelsWithoutDynamo
from meta_magic.torch_private.snapshot import WithoutModes
from meta_magic.torch_private.tensor_internals import address_of_storage
from meta_magic.trace.program import MODULE_HEADER
from meta_magic.trace.signature import (
    NAN,
    NEGATIVE_NAN,
    Geometry,
    OpaqueArgument,
    TensorArgument,
)

if TYPE_CHECKING:
    from meta_magic.cost.storage_lives import Lives
    from meta_magic.trace.program import Program
    from meta_magic.trace.signature import Signature

SEED: Final = "aten.ones_like.default"
"""The operator that makes the first gradient of a backward pass."""


def find_saved(
    program: "Program", columns: Columns, lives: "Lives", trained: Integers
) -> Integers:
    """Return the storages that autograd saved."""
    is_saved = np.zeros(columns.n_storages, np.bool_)
    is_saved[find_read_in_backward(program, columns, lives)] = True
    is_saved[find_read_again(program, columns, lives)] = True
    is_trained = np.zeros(columns.n_storages, np.bool_)
    is_trained[trained] = True
    chosen = find_undecided(program, columns, lives, is_saved | is_trained)
    is_saved[ask_autograd(program, columns, chosen, is_trained)] = True
    return np.flatnonzero(is_saved)


def find_read_in_backward(
    program: "Program", columns: Columns, lives: "Lives"
) -> Integers:
    """Return the storages of forward calls that backward calls read.

    A backward call reads inputs and outputs of its forward call. It also reads storages
    of other forward calls, where a user's own autograd function saved them.
    """
    is_backward = columns.phase == PHASES.index("backward")
    reads = np.flatnonzero(is_backward[columns.call] & ~columns.is_made)
    storages, calls = columns.storage[reads], columns.call[reads]
    is_of_forward = find_touched(columns, columns.forward[calls], storages)
    seeds = np.asarray([s.op == SEED for s in program.signatures], np.bool_)
    is_late = is_backward | seeds[columns.signature]
    maker = columns.call[lives.first_tensor[storages]]
    saved: Integers = storages[is_of_forward | ~is_late[maker]]
    return saved


def find_touched(columns: Columns, calls: Integers, storages: Integers) -> Flags:
    """Return for each pair (call or -1, storage) whether the call has the storage.

    Step n compares the n-th tensor of all remaining calls.
    """
    is_touched = np.zeros(len(calls), np.bool_)
    rest = np.flatnonzero(calls >= 0)
    at, end = columns.first[calls[rest]], columns.first[calls[rest] + 1]
    while len(rest):
        within = at < end
        rest, at, end = rest[within], at[within], end[within]
        is_same = columns.storage[at] == storages[rest]
        is_touched[rest[is_same]] = True
        rest, at, end = rest[~is_same], at[~is_same] + 1, end[~is_same]
    return is_touched


def find_read_again(program: "Program", columns: Columns, lives: "Lives") -> Integers:
    """Return the forward storages that calls repeated by checkpointing read."""
    rows = np.frombuffer(program.module_rows, np.uint32).reshape(-1, MODULE_HEADER)
    is_again = np.zeros(columns.n_calls, np.bool_)
    for first, end in rows[list(program.facts.repeated), 4:6]:
        is_again[first:end] = True
    reads = np.flatnonzero(is_again[columns.call] & ~columns.is_made)
    storages = columns.storage[reads]
    is_late = is_again | (columns.phase == PHASES.index("backward"))
    saved: Integers = storages[~is_late[columns.call[lives.first_tensor[storages]]]]
    return saved


def find_undecided(
    program: "Program", columns: Columns, lives: "Lives", is_known: Flags
) -> Integers:
    """Return the calls that may have saved tensors which no recorded call reads.

    There may be no backward pass, or it may have needed sizes alone.
    """
    calls = np.frombuffer(program.facts.differentiated, np.uint32)
    is_differentiated = np.zeros(columns.n_calls, np.bool_)
    is_differentiated[calls] = True
    # If one entry is assigned several times, the last number stays: the first call.
    back, tied = np.arange(columns.n_calls), np.flatnonzero(columns.forward >= 0)[::-1]
    back[columns.forward[tied]] = tied
    end = np.zeros(columns.n_storages, np.int64)
    np.maximum.at(end, lives.storage, lives.stop)
    is_open = is_differentiated[columns.call] & ~is_known[columns.storage]
    is_open &= end[columns.storage] > back[columns.call]
    return np.flatnonzero(np.bincount(columns.call[is_open]))


def ask_autograd(
    program: "Program", columns: Columns, calls: Integers, is_trained: Flags
) -> Integers:
    """Return the storages that autograd saves of some calls, by making them again."""
    first, is_needed = columns.first, is_trained.copy()
    differentiated = np.zeros(columns.n_calls, np.bool_)
    differentiated[np.frombuffer(program.facts.differentiated, np.uint32)] = True
    is_needed[columns.storage[differentiated[columns.call] & columns.is_made]] = True
    calls_by_kind = defaultdict[tuple[int, tuple[bool, ...]], list[int]](list)
    for call in calls.tolist():
        number = int(columns.signature[call])
        n_inputs = len(program.signatures[number].inputs)
        read = columns.storage[first[call] : first[call] + n_inputs]
        calls_by_kind[number, tuple(is_needed[read].tolist())].append(call)
    found = [
        columns.storage[first[alike] + slot]
        for (number, needed), alike in calls_by_kind.items()
        for slot in find_saved_slots(program.signatures[number], needed)
    ]
    return np.concatenate([np.empty(0, np.int64), *found])


ADDMM: Final = "aten.addmm.default"
"""Its answer is known: its meta kernel would import sympy, only for this question."""


def find_saved_slots(signature: "Signature", needed: Sequence[bool]) -> list[int]:
    """Return which tensors autograd saves of a call, by making it on meta.

    ``needed`` says which inputs require a gradient. The result has indices of inputs,
    and of outputs after them; [] if the call cannot be made.
    """
    if signature.op == ADDMM:
        return [slot for slot, other in ((1, 2), (2, 1)) if needed[other]]
    saved: list[Tensor] = []
    with (
        WithoutModes(),
        KernelsWithoutDynamo(),
        torch.inference_mode(mode=False),
        torch.enable_grad(),
    ):
        try:
            inputs = [*map(make_input, signature.inputs, needed)]
            with torch.autograd.graph.saved_tensors_hooks(saved.append, drop):
                returned = call(signature, inputs)
        except (RuntimeError, TypeError, ValueError, AttributeError):
            return []  # an operator of a library that is gone, or without meta kernel
        outputs = tensors_in(returned)
        kept = {*map(find_address, saved)} - {None}
        addresses = [*map(find_address, (*inputs, *outputs))]
    return [slot for slot, address in enumerate(addresses) if address in kept]


def find_address(tensor: Tensor) -> int | None:
    """Return the address of a tensor's storage; None for one made of others."""
    if tensor.layout is not torch.strided:
        return None
    address: int = address_of_storage(tensor.untyped_storage())
    return address


def drop(_: object) -> Tensor:
    """Unpack a saved tensor: never called, as there is no backward pass."""
    raise NotImplementedError


def tensors_in(returned: object) -> list[Tensor]:
    """Return the tensors that an operator returned, in order."""
    parts = returned if isinstance(returned, (tuple, list)) else (returned,)
    return [part for part in parts if isinstance(part, Tensor)]


def make_input(geometry: Geometry, is_needed: bool) -> Tensor:  # noqa: FBT001  of a map
    """Return a meta tensor like an input, on a storage of its own."""
    if geometry.stride is None:
        raise TypeError(f"a tensor of {geometry.layout} is made of others")
    leaf = torch.empty_strided(
        geometry.shape, geometry.stride, dtype=geometry.dtype, device="meta"
    )
    can_have = geometry.dtype.is_floating_point or geometry.dtype.is_complex
    # A view: an operator that writes its input would refuse a leaf.
    return leaf.requires_grad_().view_as(leaf) if is_needed and can_have else leaf


def call(signature: "Signature", inputs: Sequence[Tensor]) -> Any:
    """Call an operator on other tensors."""
    namespace, name, overload = signature.op.split(".")
    operator = getattr(getattr(getattr(torch.ops, namespace), name), overload)
    arguments = {key: fill(value, inputs) for key, value in signature.arguments}
    return operator(**arguments)


def fill(value: object, inputs: Sequence[Tensor]) -> object:
    """Return an argument with its tensors filled in."""
    if isinstance(value, TensorArgument):
        return inputs[value.index]
    if isinstance(value, tuple):
        return [fill(item, inputs) for item in value]
    if isinstance(value, OpaqueArgument):
        return {NAN: float("nan"), NEGATIVE_NAN: -float("nan")}.get(value)
    return value
