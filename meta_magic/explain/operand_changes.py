"""What people do to a tensor that is refused: cast it, turn it, give it a dimension."""

from collections.abc import Iterator
from itertools import combinations
from operator import methodcaller
from typing import Final

import torch

from meta_magic.explain.probing import Change
from meta_magic.trace.failed_call import Operand

__all__ = ["list_casts", "list_reshapes"]

CASTS: Final = {
    "float": torch.float32,
    "long": torch.int64,
    "bool": torch.bool,
    "half": torch.float16,
    "bfloat16": torch.bfloat16,
    "double": torch.float64,
}
"""Methods by their names, the likeliest first."""


def list_casts(operand: Operand) -> Iterator[Change]:
    """Yield casts to other dtypes."""
    for name, dtype in CASTS.items():
        if dtype != operand.geometry.dtype:
            yield Change(f"{{}}.{name}()", methodcaller(name))


def list_reshapes(operand: Operand) -> Iterator[Change]:
    """Yield other forms of the same elements, the likeliest first."""
    shape = operand.geometry.shape
    rank = len(shape)
    pairs = [*combinations(range(rank), 2)]
    for first, second in pairs:
        is_last = rank > 2 and (first, second) == (rank - 2, rank - 1)  # noqa: PLR2004  a matrix has .T
        text = "transpose(-2, -1)" if is_last else f"transpose({first}, {second})"
        method = methodcaller("transpose", first, second)
        yield Change("{}.T" if rank == 2 else f"{{}}.{text}", method)  # noqa: PLR2004  as well
    for dim in range(rank + 1):
        yield Change(f"{{}}.unsqueeze({dim})", methodcaller("unsqueeze", dim))
    for dim in (dim for dim, size in enumerate(shape) if size == 1):
        yield Change(f"{{}}.squeeze({dim})", methodcaller("squeeze", dim))
    if rank > 2:  # noqa: PLR2004  else it changes nothing
        yield Change("{}.flatten(1)", methodcaller("flatten", 1))
    if rank > 1:
        yield Change("{}.flatten()", methodcaller("flatten"))
        yield Change("{}.contiguous()", methodcaller("contiguous"))
