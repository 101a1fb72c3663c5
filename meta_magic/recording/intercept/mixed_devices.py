"""Refuse operators on tensors of several devices, real or planned.

In torch 2.13 ``mm``, ``addmm``, ``bmm``, bias-less ``linear`` and ``conv2d``,
``embedding``, indexing, ``gather`` and others, given a real and a meta tensor, return
a real tensor of whatever lay in memory, and no error; ``real.add_(meta)`` does
nothing. The rule: an operator that reads a meta tensor and returns a real one is an
error, unless it only takes the other's shape, as ``zeros_like(meta, device="cpu")``.

Among planned devices ``join_placements`` decides: without it ``x.cuda() + y`` with
``y`` on the CPU would be recorded, and torch would refuse it on a real GPU.
"""

from collections.abc import Sequence
from typing import Final

import torch
from torch import Tensor, nn

from meta_magic.errors import MetaMagicError, MixedDeviceError
from meta_magic.recording.identities.tensors import LiveGeometry
from meta_magic.recording.intercept.real_tensors.capturable import (
    BY_PAIRS,
    INDEXING,
    find_real,
    takes_numbers,
)
from meta_magic.recording.signatures.entries import LiveCall, OpTable
from meta_magic.torch_private.tensor_internals import base_of
from meta_magic.trace.formulas.operands import SHAPE_ONLY
from meta_magic.trace.units import format_shape

PACKING: Final = "aten._pack_padded_sequence."


def check_devices(op: str, call: LiveCall) -> None:
    """Raise if the call read a meta tensor and returned a real one."""
    if not is_mixed(op, call):
        return
    metas = [t for t, seen in call.inputs if seen[2].is_meta]
    reals = [t for t, seen in (*call.inputs, *call.outputs) if not seen[2].is_meta]
    raise MixedDeviceError(
        f"{op} got a real and a meta tensor: {describe(reals[0])} and "
        f"{describe(metas[0])}. torch would return uninitialized memory. "
        f"{advise(reals[0])}."
    )


def explain_mix(error: Exception, tensors: Sequence[Tensor]) -> None:
    """Add to an operator's own error which tensors were real and which were meta."""
    metas = [t for t in tensors if t.is_meta]
    reals = [t for t in tensors if not t.is_meta and t.ndim]
    is_new = isinstance(error, RuntimeError) and not hasattr(error, "__notes__")
    is_due = "device" in str(error) or "meta" in str(error)
    is_ours = isinstance(error, MetaMagicError)
    if metas and reals and is_new and is_due and not is_ours:
        error.add_note(
            f"meta_magic: {describe(reals[0])} is real, {describe(metas[0])} is meta. "
            f"{advise(reals[0])}."
        )


def advise(real: Tensor) -> str:
    """Return advice on how to put a real and a meta tensor on one device."""
    both = "or both real (with torch.device('cpu'): ...)"
    if isinstance(real, nn.Parameter):
        return (
            "Build its module in the cell (where load_state_dict copies values; "
            f"assign=True puts real tensors there) {both}"
        )
    return (
        "Make both meta (x.to('meta') keeps values, mm.meta_like(x) strides and views) "
        f"{both}"
    )


def is_mixed(op: str, call: LiveCall) -> bool:
    """Whether the result is real although it needs data that does not exist."""
    if all(seen[2].is_meta for _, seen in call.outputs):
        return False
    if all(not seen[2].is_meta for _, seen in call.inputs):
        return False
    # Packed batch sizes are on the CPU, as their lengths are.
    return op.split(".")[1] not in SHAPE_ONLY and not op.startswith(PACKING)


def describe(tensor: Tensor) -> str:
    """Describe a tensor, or what it is a view of, if running code has a name for it."""
    name, is_exact = find_real(tensor)
    whole = tensor if is_exact else base_of(tensor)
    dtype = str(whole.dtype).removeprefix("torch.")
    where = f"{whole.device} {dtype} {format_shape(whole.shape)}"
    kind = "" if whole is tensor else "a view of "
    return f"{kind}{'a tensor' if name is None else repr(name)} ({where})"


CPU: Final = torch.device("cpu")

FIRST_DECIDES: Final = frozenset(
    {"aten.copy_.default", "aten._to_copy.default", "aten.set_.source_Tensor"}
    | {"aten.lift_fresh.default", "aten._pack_padded_sequence.default"}
)
"""Operators that accept several devices; the result is on the first one."""


def join_placements(
    table: OpTable, inputs: Sequence[LiveGeometry]
) -> torch.device | None:
    """Return the planned device of an operator's new tensors; refuse to mix devices."""
    placements = {geometry.placement for geometry in inputs}
    if len(placements) == 1:
        return placements.pop()
    name = table.name
    first = inputs[0].placement if inputs else None
    if not inputs or name in FIRST_DECIDES or name.startswith(BY_PAIRS):
        return first
    placed = [geometry for geometry in inputs if geometry.placement is not None]
    if name in INDEXING:
        placed = [g for g in placed if g is inputs[0] or g.placement != CPU] or placed
    if takes_numbers(table):
        placed = [g for g in placed if g.shape or g.placement != CPU] or placed
    for other in placed:
        if other.placement != placed[0].placement:
            raise RuntimeError(
                "Expected all tensors to be on the same device, but found at least two "
                f"devices, {placed[0].placement} and {other.placement}! ({name})"
            )
    return placed[0].placement
