"""Where an operator's results lie, given where its arguments do; what torch refuses."""

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
"""Operators that take tensors of several devices; the result lies with the first."""

BY_PAIRS: Final = ("aten._foreach_", "aten._fused_")
"""How operators of lists are named, in which each pair joins for itself."""

INDEXING: Final = frozenset(
    {"aten.index.Tensor", "aten._unsafe_index.Tensor", "aten.index_put.default"}
    | {"aten.index_put_.default", "aten._index_put_impl_.default"}
)
"""Operators whose indices may lie on the CPU, whatever the device of the first."""

NUMBERS: Final = INDEXING | frozenset(
    {"aten.fill_.Tensor", "aten.masked_fill.Tensor", "aten.masked_fill_.Tensor"}
    | {"aten.index_fill.int_Tensor", "aten.index_fill_.int_Tensor"}
)
"""Operators that take a number on the CPU, beside those that work elementwise."""


def join_placements(
    table: OpTable, inputs: Sequence[LiveGeometry]
) -> torch.device | None:
    """Return the place of what an operator returns that is new.

    Args:
        table: The operator.
        inputs: The geometries of its tensors.

    Raises:
        RuntimeError: The tensors lie on different devices, in torch's words.
    """
    places = {geometry.place for geometry in inputs}
    if len(places) == 1:
        return places.pop()
    name = table.name
    first = inputs[0].place if inputs else None
    if not inputs or name in FIRST_DECIDES or name.startswith(BY_PAIRS):
        return first
    placed = [geometry for geometry in inputs if geometry.place is not None]
    if name in INDEXING:
        placed = [g for g in placed if g is inputs[0] or g.place != CPU] or placed
    if takes_numbers(table):
        placed = [g for g in placed if g.shape or g.place != CPU] or placed
    for other in placed:
        if other.place != placed[0].place:
            raise RuntimeError(
                "Expected all tensors to be on the same device, but found at least two "
                f"devices, {placed[0].place} and {other.place}! ({name})"
            )
    return placed[0].place


def takes_numbers(table: OpTable) -> bool:
    """Whether an operator takes a number on the CPU beside tensors elsewhere."""
    if table.name in NUMBERS or table.name.startswith(BY_PAIRS):
        return True
    return torch.Tag.pointwise in table.func.tags
