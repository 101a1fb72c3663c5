"""Sizes that are assumed, because the values that decide them cannot be computed."""

from collections.abc import Sequence
from math import prod
from typing import Final, NamedTuple

from meta_magic.trace.options import Assumed
from meta_magic.trace.program import HEADER, Program
from meta_magic.trace.signature import Geometry, Signature

__all__ = ["Guess", "guess_count"]

CHOICES: Final = frozenset({"aten.topk", "aten.argmax", "aten.max", "aten.sort"})
"""What sends each token to experts: the last dimension of what is read has them all."""

REDUCTIONS: Final = frozenset(
    f"aten.{name}" for name in ("sum", "any", "amax", "bincount", "histc", "count")
)
"""What is true of an expert if any token is sent to it."""

SCATTERS: Final = frozenset(
    f"aten.{name}{end}" for name in ("scatter", "scatter_add") for end in ("", "_")
)
LOOKUPS: Final = frozenset(
    f"aten.{name}" for name in ("index", "index_select", "gather", "select")
)
"""What takes from its first argument, at positions that are of no interest."""


class Guess(NamedTuple):
    """How many elements of a mask are taken to be true.

    Attributes:
        n_true: How many.
        text: By which assumption.
    """

    n_true: int
    text: str


def guess_count(
    program: Program, storage: int, shape: Sequence[int], assumed: Assumed
) -> Guess | None:
    """Return how many elements of a mask are assumed to be true, or None.

    Args:
        program: All that was recorded so far.
        storage: That of the mask.
        shape: Shape of the mask.
        assumed: What the user said.
    """
    numel = prod(shape)
    part = find_routed_part(program, storage) if assumed.is_uniform else None
    if part is not None:
        return Guess(round(part * numel), "routing=uniform")
    if assumed.nonzero is None:
        return None
    part = assumed.nonzero
    return Guess(
        round(part * numel), f"nonzero={'all' if part == 1 else format(part, 'g')}"
    )


def find_routed_part(program: Program, storage: int) -> float | None:
    """Return which part of a mask is true if every expert gets as many tokens.

    The mask is followed backwards to the choice of the experts: ``topk`` or the like.
    None if there is none.
    """
    words = memoryview(program.words).cast("I")
    storages = memoryview(program.storage_by_tensor).cast("I")
    wanted, part = {storage}, None
    for index in range(len(program.offsets) - 2, -1, -1):
        start, end = program.offsets[index], program.offsets[index + 1]
        signature = program.signatures[words[start]]
        split = start + HEADER + len(signature.inputs)
        read = [storages[word] for word in words[start + HEADER : split]]
        made = {storages[word] for word in words[split:end]}
        if wanted.isdisjoint(made | {read[i] for i in signature.writes}):
            continue
        name = signature.op.rpartition(".")[0]
        if name in CHOICES:
            return 1 / signature.inputs[0].shape[-1] if part is None else part
        if part is None:
            part = find_part(name, signature)
        wanted -= made - set(read)
        wanted.update(read[:1] if name in LOOKUPS else read)
    return None


def find_part(name: str, signature: Signature) -> float | None:
    """Return which part is true of what an operator makes; None if it does not say."""
    if name in REDUCTIONS:
        return 1.0
    if name in SCATTERS:
        written, positions = signature.inputs[:2]
        return count(positions) / max(1, count(written))
    return None


def count(geometry: Geometry) -> int:
    """Return the number of elements."""
    return prod(geometry.shape)
