"""Call an operator with the values of what it reads, or with an assumption about them.

``x[mask]`` runs with the number of true elements of ``mask``, and ``torch.unique(x)``
with the values of ``x`` on the CPU; the result is on meta again, with the size that the
CPU would give it. ``call_with`` takes values, ``call_assumed`` an assumption.
"""

from collections.abc import Mapping
from math import prod
from typing import Any, Final

import torch
from torch import Tensor

from meta_magic.recording.as_device.cpu_kernels import (
    lay_out_as,
    make_stand_in,
    put_on_meta,
)
from meta_magic.recording.as_device.layouts import lay_out_alike
from meta_magic.recording.identities.nested_tensors import tensors_in
from meta_magic.recording.signatures.arguments import Args, Given, Kwargs
from meta_magic.recording.signatures.entries import ALIGNED, OpTable
from meta_magic.replaying.assumed_operator import fill
from meta_magic.trace.program_facts import Assumption

COPY: Final = "aten._to_copy.default"
INDEX: Final = "aten.index.Tensor"
NONZERO: Final = "aten.nonzero.default"
SELECT: Final = "aten.masked_select.default"


def call_with(table: OpTable, given: Given, real_by_id: Mapping[int, Tensor]) -> Any:
    """Return what an operator returns, given the values of what it reads."""
    args, kwargs, _ = given
    if table.name in (INDEX, SELECT):
        counts = {key: int(mask.count_nonzero()) for key, mask in real_by_id.items()}
        if table.name == INDEX:
            return _index_by_masks(args, counts)
        return _select_by_mask(args[0], args[1], counts)
    if table.name == ALIGNED:  # it reads only the shape of its first argument
        other = torch.empty(1, device="cpu").expand(args[0].shape)
        real_by_id = {**real_by_id, id(args[0]): other}
    outs = find_outs(table, kwargs)
    real_by_id = {**real_by_id, **{id(out): make_stand_in(out) for out in outs}}
    real_args, real_kwargs = _replace((args, kwargs), real_by_id)
    returned = table.func(*real_args, **real_kwargs)
    for out in outs:
        lay_out_as(real_by_id[id(out)], out)
    out_by_id = {id(real_by_id[id(out)]): out for out in outs}
    return returned if table.name == COPY else put_on_meta(returned, out_by_id)


def call_assumed(
    table: OpTable, given: Given, read: Tensor, assumption: Assumption
) -> Any:
    """Return what an operator returns if what it reads is as assumed."""
    counts = {id(read): assumption.n_true}
    if table.name == INDEX:
        return _index_by_masks(given.args, counts)
    if table.name == SELECT:
        return _select_by_mask(given.args[0], read, counts)
    if table.name == NONZERO:
        shape = (assumption.n_true, read.ndim)
        return torch.empty(shape, dtype=torch.long, device="meta")
    if table.name == COPY:
        dtype = given.kwargs.get("dtype") or read.dtype
        return fill(assumption, read.shape, dtype)
    number = assumption.n_true if assumption.value is None else assumption.value
    is_whole = float(number).is_integer()
    has_fractions = read.dtype.is_floating_point or read.dtype.is_complex
    return int(number) if is_whole and not has_fractions else number


def find_outs(table: OpTable, kwargs: Kwargs) -> list[Tensor]:
    """Return the tensors of ``out=``."""
    given = [kwargs.get(name) for name in table.written] if table.has_out else []
    return tensors_in(given)


def _replace(value: Any, real_by_id: Mapping[int, Tensor]) -> Any:
    """Return arguments with real tensors in place of those on meta."""
    if isinstance(value, Tensor):
        return real_by_id.get(id(value), value)
    if isinstance(value, torch.device):
        return torch.device("cpu")
    if isinstance(value, (list, tuple)):
        return type(value)([_replace(item, real_by_id) for item in value])
    if isinstance(value, Mapping):
        return {name: _replace(item, real_by_id) for name, item in value.items()}
    return value


def _index_by_masks(args: Args, count_by_id: Mapping[int, int]) -> Tensor:
    """Index a meta tensor by the positions at which each mask is true.

    Args:
        args: The arguments of ``aten.index``.
        count_by_id: How many elements of each mask are true.

    Raises:
        IndexError: A mask has another shape, with torch's message.
    """
    tensor, indices = args
    positions: list[Tensor | None] = []
    for mask in indices:
        count = None if mask is None else count_by_id.get(id(mask))
        if count is None:
            positions.append(mask)
            continue
        at = len(positions)
        if mask.shape != tensor.shape[at : at + mask.ndim]:
            shapes = list(mask.shape), list(tensor.shape)
            raise IndexError(
                f"The shape of the mask {shapes[0]} at index 0 does not match the "
                f"shape of the indexed tensor {shapes[1]} at index {at}"
            )
        made = [torch.empty(count, dtype=torch.long, device="meta")] * mask.ndim
        positions.extend(made)
    index = torch.ops.aten.index.Tensor
    found: Tensor = index(tensor, positions)
    return lay_out_alike(index, (tensor, positions), {}, found)  # type: ignore[no-any-return]  # it returns what any operator does


def _select_by_mask(
    tensor: Tensor, mask: Tensor, count_by_id: Mapping[int, int]
) -> Tensor:
    """Return a meta tensor with an element for each true one of a mask."""
    shape = torch.broadcast_shapes(tensor.shape, mask.shape)
    repeats = prod(shape) // max(1, mask.numel())
    count = count_by_id[id(mask)] * repeats
    return torch.empty(count, dtype=tensor.dtype, device="meta")
