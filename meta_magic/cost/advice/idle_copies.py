"""Copies that change nothing: of the same layout, and neither side is written."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

import numpy as np

from meta_magic.cost.advice.advice_records import Advice
from meta_magic.cost.storage_categories import CATEGORIES
from meta_magic.trace.signature import span_nbytes
from meta_magic.trace.units import format_bytes

if TYPE_CHECKING:
    from meta_magic.cost.advice.evidence import Evidence
    from meta_magic.cost.program_columns import Integers
    from meta_magic.trace.signature import Signature

__all__ = ["find_idle_copies"]

HELD: Final = [*map(CATEGORIES.index, ("parameter", "buffer", "optimizer_state"))]
"""What modules and optimizers hold is theirs to write later."""

SPARED: Final = frozenset({"torch.Tensor.clone", "torch.clone", "torch.Tensor.to"})
"""Functions that copy what they are given first, and nothing else."""

COPIES: Final = frozenset({"aten.clone.default", "aten._to_copy.default"})


def find_idle_copies(evidence: "Evidence") -> Iterator[Advice]:
    """Yield an advice for each place that copies in vain.

    What no call reads was copied for somebody else.
    """
    chosen = evidence.calls_of(is_plain_copy) & evidence.is_own
    chosen &= evidence.is_in("forward", "other")
    calls = np.flatnonzero(chosen)
    if not len(calls):
        return
    last_write = evidence.last_call(evidence.columns.is_written)
    last_read = evidence.last_call(~evidence.columns.is_made)
    calls_by_place = defaultdict(list)
    for call in calls.tolist():
        copy = int(evidence.columns.storage[evidence.tensors_of(call)][-1])
        if last_read[copy] > call and is_idle(evidence, call, last_write):
            calls_by_place[int(evidence.columns.place[call])].append(call)
    for copying in calls_by_place.values():
        copies = evidence.columns.first[np.asarray(copying) + 1] - 1
        storages = evidence.columns.storage[copies]
        # What was copied lives as long as both: what is spared is both at once.
        both = np.minimum(
            *evidence.stop[evidence.columns.storage[[copies - 1, copies]]]
        )
        nbytes = int(evidence.nbytes[storages].sum())
        if nbytes:
            spared = spare(evidence, copying)
            times = f"{len(copying):,} copies" if len(copying) > 1 else "a copy"
            yield Advice(
                kind="copy",
                text=f"{times} of the same layout ({format_bytes(nbytes)}): nothing "
                "is written while both live, so what was copied would do",
                lines=evidence.lines_of(copying),
                nbytes=nbytes,
                peak_nbytes=evidence.save_between(storages, np.asarray(copying), both),
                choice="no copy" if spared else None,
                places=spared,
            )


def spare(evidence: "Evidence", calls: Sequence[int]) -> tuple[int, ...]:
    """Return the place of calls, if they could return what they are given."""
    found = evidence.places_of(calls)
    functions = {evidence.program.places[place].function for place in found}
    return found if functions <= SPARED else ()


def is_plain_copy(signature: "Signature") -> bool:
    """Whether calls of a signature copy a tensor as it is, to where it is."""
    n_tensors = len(signature.inputs), len(signature.outputs)
    if signature.op not in COPIES or n_tensors != (1, 1):  # none returned: it raised
        return False
    (source,), (copy,) = signature.inputs, signature.outputs
    is_array = bool(source.shape) and source.stride is not None
    return is_array and all(
        getattr(source, name) == getattr(copy, name)
        for name in ("shape", "stride", "dtype", "device", "place", "is_conj", "is_neg")
    )


def is_idle(evidence: "Evidence", call: int, last_write: "Integers") -> bool:
    """Whether nobody could tell a copy from what was copied.

    A part of something larger may be copied so that the rest is freed, and what is
    alive beside its copy at the end may be written later.
    """
    source, copy = evidence.columns.storage[evidence.tensors_of(call)].tolist()
    signature = evidence.program.signatures[evidence.columns.signature[call]]
    source_end, copy_end = (
        (int(evidence.stop[storage]), bool(evidence.is_left[storage]))
        for storage in (source, copy)
    )
    is_part = evidence.nbytes[source] > span_nbytes(signature.outputs[0])
    is_leaf = any(copy == storage for _, storage in evidence.program.facts.accumulated)
    is_held = evidence.memory.account.category[copy] in HELD
    both_left = source_end[1] and copy_end[1]
    return (
        max(last_write[source], last_write[copy]) <= call
        and not (both_left or is_leaf or is_held)
        and not (is_part and copy_end > source_end)
    )
