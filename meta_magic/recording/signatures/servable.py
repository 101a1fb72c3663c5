"""Say which calls may be answered without running their kernel.

The same operator on the same input metadata with the same arguments gives the same
output metadata. A repeated call is therefore *served*: its outputs are made straight
away. Three kinds of operator qualify, and everything else runs:

* pure: the schema names no alias and no write; the outputs are new strided tensors;
* view: the outputs share the storage of the one input; one is remade with
  ``as_strided`` or, where that would not do, as several are, by the operator itself;
* in-place: the returns are the written arguments, whose metadata did not change.
"""

from typing import Any, Final

import torch
from torch import Tensor

from meta_magic.recording.identities.tensors import Seen
from meta_magic.recording.signatures.entries import Kind, LiveCall, OpTable
from meta_magic.torch_private.tensor_internals import is_zero_tensor

__all__ = ["COUNTED", "choose_kind", "is_as_empty_strided", "is_on_real"]

META: Final = torch.device("meta")
"""Not by name, which is how a cell would say it, where the function mode is on."""

DETACH: Final = "aten.detach.default"
"""Autograd saves results by it with its own keys active: an ``as_strided`` in its place
would give the saved tensor a history, and so tie graph and result into a cycle."""

COUNTED: Final = "counted"
"""Stands for ``None`` returned by what counts the writes of each of its tensors."""


def choose_kind(table: OpTable, call: LiveCall) -> tuple[Kind, Any]:
    """Return how later calls with this signature may be answered, and with what."""
    if not all(
        seen[2].is_servable and type(tensor) in (Tensor, torch.nn.Parameter)
        for tensor, seen in (*call.inputs, *call.outputs)
    ):
        return Kind.RUN, None
    if table.written:
        return choose_in_place(table, call)
    if has_plain_views(call):
        if not isinstance(call.returned, Tensor):
            return Kind.VIEW_MANY, table.func
        return Kind.VIEW, table.func if table.name == DETACH else None
    if table.is_pure and call.outputs:
        return choose_pure(call)
    return Kind.RUN, None


def choose_pure(call: LiveCall) -> tuple[Kind, Any]:
    """Serve new tensors, unless some share a storage against their schema."""
    before = {seen[1] for _, seen in call.inputs}
    after = {seen[1] for _, seen in call.outputs}
    if before & after or len(after) < len(call.outputs):
        return Kind.RUN, None
    returned = call.returned
    if not all(is_as_empty_strided(*output) for output in call.outputs):
        return choose_wide(returned)
    if isinstance(returned, Tensor):
        return Kind.PURE, None
    if not isinstance(returned, (tuple, list)) or not all(
        item is None or isinstance(item, Tensor) for item in returned
    ):
        return Kind.RUN, None
    # An output that the operator left out, such as a gradient nobody asked for.
    is_there = tuple(item is not None for item in returned)
    return Kind.PURE_MANY, (isinstance(returned, list), is_there)


def choose_wide(returned: object) -> tuple[Kind, Any]:
    """Serve a mean on the storage of what it is of; others may keep an input's."""
    if not isinstance(returned, Tensor) or returned.ndim:
        return Kind.RUN, None
    if returned.storage_offset() or is_zero_tensor(returned):
        return Kind.RUN, None
    return Kind.PURE_WIDE, returned.untyped_storage().nbytes()


def has_plain_views(call: LiveCall) -> bool:
    """Whether the outputs are new tensors on the storage of the one input.

    Judged by what happened, not by the schema: ``aten._unsafe_view`` shares a storage
    that its schema does not admit to, and ``aten.lift_fresh`` returns its argument.
    """
    if len(call.inputs) != 1 or not call.outputs:
        return False
    base, before = call.inputs[0]
    return call.args[0] is base and all(
        view is not base and after[1] is before[1] and view.dtype is base.dtype
        for view, after in call.outputs
    )


def choose_in_place(table: OpTable, call: LiveCall) -> tuple[Kind, Any]:
    """Serve a write that returns arguments and left all metadata as it was."""
    for tensor, seen in (*call.inputs, *call.outputs):
        before = next((s for t, s in call.inputs if t is tensor), None)
        if before is None or before[1:] != seen[1:] or not is_as_seen(tensor, before):
            return Kind.RUN, None
    returned = call.returned
    if table.counts_writes:
        return Kind.IN_PLACE, COUNTED
    if returned is None or (type(returned) is tuple and not returned):
        return Kind.IN_PLACE, returned
    if isinstance(returned, Tensor):
        for where in (*range(len(call.args)), *call.kwargs):
            if argument_at(where, call) is returned:
                return Kind.IN_PLACE, where
    return Kind.RUN, None


def is_on_real(table: OpTable, call: LiveCall) -> bool:
    """Whether a call reads a real tensor, or writes it in place, and makes no other.

    As an optimizer counts its steps.
    """
    func = table.func
    is_plain = table.name.startswith("aten.") and not (table.has_out or table.is_loose)
    if not is_plain or len(call.inputs) != 1 or torch.Tag.inplace_view in func.tags:
        return False
    real, before = call.inputs[0]
    return (
        type(real) in (Tensor, torch.nn.Parameter)
        and before[2].is_real
        and "device" not in call.kwargs
        and all(made is real and after == before for made, after in call.outputs)
        and (call.returned is real) == bool(table.written)
    )


def argument_at(where: int | str, call: LiveCall) -> object:
    """Return a positional argument by its index or a keyword argument by its name."""
    return call.args[where] if isinstance(where, int) else call.kwargs[where]


def is_as_seen(tensor: Tensor, seen: Seen) -> bool:
    """Whether a strided tensor still has the geometry it had."""
    record = seen[2].record
    return (
        tuple(tensor.shape) == record.shape
        and tensor.stride() == record.stride
        and tensor.storage_offset() == record.storage_offset
        and tensor.dtype == record.dtype
    )


def is_as_empty_strided(tensor: Tensor, seen: Seen) -> bool:
    """Whether ``torch.empty_strided`` would make the same tensor, to the byte."""
    record = seen[2].record
    if record.storage_offset != 0 or record.stride is None or is_zero_tensor(tensor):
        return False
    again = torch.empty_strided(
        record.shape, record.stride, dtype=record.dtype, device=META
    )
    return again.untyped_storage().nbytes() == tensor.untyped_storage().nbytes()
