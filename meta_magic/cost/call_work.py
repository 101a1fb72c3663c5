"""FLOPs and bytes of one call (``count_one``), and of many calls (``add_up``)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import torch

from meta_magic.cost.program_columns import Integers
from meta_magic.trace.formulas.call_costs import (
    WorkKind,
    count_operations,
    count_traffic,
)
from meta_magic.trace.signature import Signature

COUNTS = ("flops", "flops_needed", "n_elementwise", "nbytes_read", "nbytes_written")

Calls: TypeAlias = Sequence[tuple[int, int]]
"""Pairs (index of a signature, number of its calls)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """The work of some calls: what they compute, read and write.

    Attributes:
        n_calls: Number of calls.
        flops: Floating-point operations of products and the like, 2 for each
            multiply-add, masked products too.
        flops_needed: FLOPs without the products that a causal mask or a window of a
            fused attention leaves out, which a kernel may skip.
        n_elementwise: Operations and functions element by element, by the weights of
            ``trace/formulas/elementwise_flops.py``; not among the FLOPs.
        nbytes_read: Bytes read, each element once.
        nbytes_written: Bytes written.

    Example:
        >>> with record() as trace:
        ...     y = torch.ones(2, 3) @ torch.ones(3, 4)
        >>> work = trace.cost.by_op["aten.mm.default"]
        >>> work.flops, work.nbytes_read, work.nbytes_written  # 6 and 12 numbers make 8
        (48, 72, 32)
    """

    n_calls: int = 0
    flops: int = 0
    flops_needed: int = 0
    n_elementwise: int = 0
    nbytes_read: int = 0
    nbytes_written: int = 0

    @property
    def nbytes(self) -> int:
        """Bytes read and written."""
        return self.nbytes_read + self.nbytes_written

    @property
    def intensity(self) -> float | None:
        """FLOPs for each byte read or written; None without bytes."""
        return self.flops / self.nbytes if self.nbytes else None


@dataclass(frozen=True, slots=True, kw_only=True)
class OneCall(Work):
    """The work of one call of a signature.

    Attributes:
        kind: What it does; ``unknown`` without a formula.
        dtype: Dtype of the first input, or else output, which decides how fast
            products are; None without tensors.
    """

    op: str
    kind: WorkKind
    dtype: torch.dtype | None
    n_calls: int = 1


def count_one(signature: Signature) -> OneCall:
    """Return the work of one call, by the formulas."""
    tensors = (*signature.inputs, *signature.outputs)
    return OneCall(
        op=signature.op,
        dtype=tensors[0].dtype if tensors else None,
        **count_operations(signature)._asdict(),
        **count_traffic(signature)._asdict(),
    )


def add_up(calls: Calls, each: Sequence[Work]) -> Work:
    """Return the work of calls, given the work of one call of each signature."""
    counts = {
        name: sum(n * getattr(each[i], name) for i, n in calls) for name in COUNTS
    }
    return Work(n_calls=sum(n for _, n in calls), **counts)


def count_calls(keys: Integers, signatures: Integers) -> Mapping[int, Calls]:
    """Return how many calls have each key, such as their phase; none for -1."""
    n = int(signatures.max(initial=0)) + 1
    pairs, counts = np.unique(keys * n + signatures, return_counts=True)
    found: dict[int, list[tuple[int, int]]] = {}
    for pair, count in zip(pairs.tolist(), counts.tolist(), strict=True):
        if pair >= 0:
            found.setdefault(pair // n, []).append((pair % n, count))
    return found
