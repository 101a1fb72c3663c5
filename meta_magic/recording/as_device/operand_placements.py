"""The planned device of an operator's results, from those of its arguments.

Without this ``x.cuda() + y`` with ``y`` on the CPU would be recorded, and torch would
refuse it on a real GPU.
"""

from collections.abc import Sequence
from typing import Final

import torch

from meta_magic.recording.identities.geometries import LiveGeometry
from meta_magic.recording.signatures.entries import OpTable

CPU: Final = torch.device("cpu")

FIRST_DECIDES: Final = frozenset(
    {"aten.copy_.default", "aten._to_copy.default", "aten.set_.source_Tensor"}
    | {"aten.lift_fresh.default", "aten._pack_padded_sequence.default"}
)
"""Operators that accept several devices; the result is on the first one."""

BY_PAIRS: Final = ("aten._foreach_", "aten._fused_")
"""Prefixes of operators on lists of tensors; only tensors of one pair are compared."""

INDEXING: Final = frozenset(
    {"aten.index.Tensor", "aten._unsafe_index.Tensor", "aten.index_put.default"}
    | {"aten.index_put_.default", "aten._index_put_impl_.default"}
)
"""Operators whose indices may be on the CPU, whatever the device of the first."""

NUMBERS: Final = INDEXING | frozenset(
    {"aten.fill_.Tensor", "aten.masked_fill.Tensor", "aten.masked_fill_.Tensor"}
    | {"aten.index_fill.int_Tensor", "aten.index_fill_.int_Tensor"}
)
"""Operators that accept a number on the CPU, besides elementwise operators."""


def join_placements(
    table: OpTable, inputs: Sequence[LiveGeometry]
) -> torch.device | None:
    """Return the planned device of the new tensors that an operator returns.

    Args:
        inputs: The geometries of its tensors.

    Raises:
        RuntimeError: The tensors are on different devices; the message is torch's.
    """
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


def takes_numbers(table: OpTable) -> bool:
    """Whether an operator accepts a number on the CPU beside tensors elsewhere."""
    if table.name in NUMBERS or table.name.startswith(BY_PAIRS):
        return True
    return torch.Tag.pointwise in table.func.tags
