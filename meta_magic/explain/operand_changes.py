"""What people do to a tensor that is refused: cast it, turn it, give it a dimension."""

from collections.abc import Iterator
from itertools import combinations
from operator import methodcaller
from typing import Final

import torch

from meta_magic.explain.probing import Change, Probe
from meta_magic.trace.failed_call import Operand

__all__ = ["list_accepted_casts", "list_accepted_forms"]

CASTS: Final = {
    "float": torch.float32,
    "long": torch.int64,
    "bool": torch.bool,
    "half": torch.float16,
    "bfloat16": torch.bfloat16,
    "double": torch.float64,
}
"""Methods by their names, the likeliest first."""


CONTIGUOUS: Final = Change("{}.contiguous()", methodcaller("contiguous"))


def list_accepted_casts(probe: Probe, number: int) -> list[Change]:
    """Return the casts of an operand that are accepted, the likeliest first.

    None where a copy is accepted: then its dtype is none of the reasons.
    """
    if is_accepted(probe, number, CONTIGUOUS):
        return []
    casts = list_casts(probe.call.operands[number])
    return [cast for cast in casts if is_accepted(probe, number, cast)]


def list_accepted_forms(probe: Probe, number: int) -> list[Change]:
    """Return other forms of an operand that are accepted, the likeliest first."""
    forms = list_forms(probe.call.operands[number])
    return [form for form in forms if is_accepted(probe, number, form)]


def is_accepted(probe: Probe, number: int, change: Change) -> bool:
    """Whether a call accepts a change of an operand."""
    return probe.run(changes={number: change}) is not None


def list_casts(operand: Operand) -> Iterator[Change]:
    """Yield casts to other dtypes."""
    for name, dtype in CASTS.items():
        if dtype != operand.geometry.dtype:
            yield Change(f"{{}}.{name}()", methodcaller(name))


def list_forms(operand: Operand) -> Iterator[Change]:
    """Yield other forms of the same elements, the likeliest first."""
    yield CONTIGUOUS
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
