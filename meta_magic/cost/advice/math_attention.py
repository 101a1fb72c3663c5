"""Attention that falls to math, which makes a matrix of all pairs of tokens."""

from collections import defaultdict
from collections.abc import Iterator
from math import prod
from typing import TYPE_CHECKING, Final

import numpy as np

from meta_magic.cost.advice.advice_records import Advice
from meta_magic.trace.units import format_bytes

if TYPE_CHECKING:
    from meta_magic.cost.advice.evidence import Evidence
    from meta_magic.cost.program_columns import Integers
    from meta_magic.trace.provenance import KernelChoice
    from meta_magic.trace.signature import Signature

__all__ = ["find_math_attention"]

LEAST_SHARE: Final = 0.1
"""Of the peak: few tokens make few scores, and math is as good as any kernel."""

CHOICES: Final = (
    ("dropout_p is", "dropout_p=0"),
    ("switched off", "all kernels"),
    ("elements of a head are apart", ".contiguous()"),
)
"""Parts of reasons, and what a fused kernel takes instead."""

MUCH_NBYTES: Final = 1 << 30
"""Worth a word beside any peak."""


def find_math_attention(evidence: "Evidence") -> Iterator[Advice]:
    """Yield an advice for each reason for which no fused kernel is chosen."""
    choices_by_text: dict[str, list[KernelChoice]] = defaultdict(list)
    for choice in evidence.program.kernels:
        if ": " in choice.text:
            choices_by_text[choice.text].append(choice)
    for text, choices in choices_by_text.items():
        kernel, _, reason = text.partition(": ")
        numel = spread_scores(evidence, choices)
        scores = find_scores(evidence, numel)
        nbytes = int(evidence.nbytes[scores].sum())
        saved = evidence.save_without(scores)
        if saved >= min(LEAST_SHARE * evidence.peak_nbytes, MUCH_NBYTES) > 0:
            times = f", {len(choices):,} times" if len(choices) > 1 else ""
            yield Advice(
                kind="attention",
                text=f"attention is math on {kernel.rpartition(' ')[2]}{times}: "
                f"{reason}; a fused kernel makes none of the {format_bytes(nbytes)} "
                "of scores",
                lines=evidence.lines_of(choice.first_op for choice in choices),
                nbytes=nbytes,
                peak_nbytes=saved,
                choice=next((c for part, c in CHOICES if part in reason), None),
                places=evidence.places_of(choice.first_op for choice in choices),
            )


def spread_scores(evidence: "Evidence", choices: "list[KernelChoice]") -> "Integers":
    """Return for each call the elements of the scores of its attention; 0 of others.

    A backward call belongs to the attention of its forward call.
    """
    columns, signatures = evidence.columns, evidence.program.signatures
    numel = np.zeros(columns.n_calls, np.int64)
    for choice in choices:
        for call in range(choice.first_op, choice.end_op):
            signature = signatures[columns.signature[call]]
            if "softmax" in signature.op and signature.outputs:
                scores = prod(signature.outputs[0].shape)
                numel[choice.first_op : choice.end_op] = scores
    return np.where(columns.forward >= 0, numel[columns.forward], numel)


def find_scores(evidence: "Evidence", numel: "Integers") -> "Integers":
    """Return the storages that calls made of as many elements as scores have."""
    columns = evidence.columns
    of_slot = evidence.of_slots(count_elements)
    is_score = columns.is_made & (of_slot == numel[columns.call]) & (of_slot > 0)
    storages = np.unique(columns.storage[is_score])
    within: Integers = storages[numel[evidence.maker[storages]] > 0]
    return within


def count_elements(signature: "Signature") -> Iterator[int]:
    """Yield the elements of each tensor of a signature."""
    for geometry in (*signature.inputs, *signature.outputs):
        yield prod(geometry.shape)
