"""Wider numbers among narrow ones, by promotion: nobody asked for them.

Where a float32 meets a float64 the result is a float64, and so is all that is computed
of it. What is cast, or reduced to one number, was asked for.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from math import prod
from typing import TYPE_CHECKING, Final

import numpy as np
import torch

from meta_magic.cost.advice.advice_records import Advice
from meta_magic.trace.units import format_bytes

if TYPE_CHECKING:
    from meta_magic.cost.advice.evidence import Evidence
    from meta_magic.trace.signature import Signature

__all__ = ["find_wide_dtypes"]

CAST: Final = "aten._to_copy.default"

MIXING: Final = ("norm", "to_copy", "embedding", "index_put", "scatter", "autocast")
"""Parts of the names of operators that take several dtypes on purpose."""


def find_wide_dtypes(evidence: "Evidence") -> Iterator[Advice]:
    """Yield an advice for each place that makes numbers wider than the program's."""
    chosen = evidence.calls_of(is_promoting) & evidence.is_own
    chosen &= evidence.is_in("forward", "other")
    calls_by_place: dict[tuple[int, torch.dtype, torch.dtype], list[int]]
    calls_by_place = defaultdict(list)
    usual = None
    for call in np.flatnonzero(chosen).tolist():
        usual = find_usual(evidence) if usual is None else usual
        wide, narrow = find_dtypes(evidence, call)
        if narrow.itemsize >= usual.itemsize < wide.itemsize:
            place = int(evidence.columns.place[call])
            calls_by_place[place, wide, narrow].append(call)
    for (_, wide, narrow), calls in calls_by_place.items():
        yield describe(evidence, calls, wide, narrow)


def describe(
    evidence: "Evidence", calls: Sequence[int], wide: torch.dtype, narrow: torch.dtype
) -> Advice:
    """Return the advice on calls of one place."""
    columns = evidence.columns
    widened = find_widened(evidence, calls, wide)
    shares = np.ones(columns.n_storages)
    shares[widened] = narrow.itemsize / wide.itemsize
    stop = np.full(columns.n_storages, columns.n_calls)
    for source, copy in find_casts(evidence, {*widened}, narrow):
        if evidence.stop[source] > evidence.stop[copy]:
            shares[copy] = 0
        else:  # what was wide is itself what it was cast to, and lives on
            stop[source] = evidence.maker[copy]
    nbytes = int((evidence.nbytes * (1 - shares)).sum())
    makers = list_factories(evidence, widened, min(calls))
    wider, narrower = (str(dtype).removeprefix("torch.") for dtype in (wide, narrow))
    return Advice(
        kind="dtype",
        text=f"{narrower} meets {wider} and becomes {wider}, as all that follows from "
        f"it: {format_bytes(nbytes)} more; make the other one {narrower}",
        lines=evidence.lines_of(calls),
        nbytes=nbytes,
        peak_nbytes=evidence.save_by(shares, stop),
        choice=f"dtype={narrower}" if makers else None,
        places=evidence.places_of(makers),
    )


def list_factories(
    evidence: "Evidence", widened: Sequence[int], end: int
) -> Sequence[int]:
    """Return the calls before one that made what would be narrower, of nothing."""
    columns = evidence.columns
    n_read = np.bincount(columns.call[~columns.is_made], minlength=columns.n_calls)
    makers = evidence.maker[np.asarray(widened, np.int64)]
    makers = makers[(makers >= 0) & (makers < end)]
    made: list[int] = makers[n_read[makers] == 0].tolist()
    return made


def is_promoting(signature: "Signature") -> bool:
    """Whether calls of a signature widen a tensor because another one is wider."""
    floats = list_floats(signature)
    made = signature.outputs[0] if signature.outputs else None
    return (
        len({*floats}) > 1
        and made is not None
        and bool(made.shape)
        and not signature.writes
        and made.dtype == max(floats, key=lambda dtype: dtype.itemsize)
        and not any(part in signature.op for part in MIXING)
    )


def find_dtypes(evidence: "Evidence", call: int) -> tuple[torch.dtype, torch.dtype]:
    """Return the dtype that a call makes, and the narrowest that it reads."""
    signature = evidence.program.signatures[evidence.columns.signature[call]]
    floats = list_floats(signature)
    return signature.outputs[0].dtype, min(floats, key=lambda dtype: dtype.itemsize)


def list_floats(signature: "Signature") -> list[torch.dtype]:
    """Return the floating dtypes of what calls of a signature read, numbers aside."""
    return [
        geometry.dtype
        for geometry in signature.inputs
        if geometry.shape and geometry.dtype.is_floating_point
    ]


def find_usual(evidence: "Evidence") -> torch.dtype:
    """Return the dtype of most parameters, or else of most numbers that calls make."""
    numel = count_floats(
        (tensor.dtype, tensor.numel)
        for root in evidence.modules
        for node in root.walk()
        for tensor in node.tensors
        if tensor.kind == "parameter"
    )
    numel = numel or count_floats(
        (geometry.dtype, n * prod(geometry.shape))
        for number, n in Counter(evidence.columns.signature.tolist()).items()
        for geometry in evidence.program.signatures[number].outputs
    )
    return numel.most_common(1)[0][0]


def count_floats(pairs: Iterable[tuple[torch.dtype, int]]) -> Counter[torch.dtype]:
    """Return how many numbers there are of each floating dtype."""
    counts = Counter[torch.dtype]()
    for dtype, n in pairs:
        if dtype.is_floating_point and n:
            counts[dtype] += n
    return counts


def find_widened(
    evidence: "Evidence", calls: Sequence[int], wide: torch.dtype
) -> Sequence[int]:
    """Return the storages that would be narrower: what calls make, and what follows.

    And what they read that is wide, if a call made it of nothing.
    """
    columns, signatures = evidence.columns, evidence.program.signatures
    n_read = np.bincount(columns.call[~columns.is_made], minlength=columns.n_calls)
    is_wide = evidence.of_slots(
        lambda s: (int(t.dtype == wide) for t in (*s.inputs, *s.outputs))
    )
    widened: set[int] = set()
    promoting = {*calls}
    for call in range(min(calls), columns.n_calls):
        n_inputs = len(signatures[columns.signature[call]].inputs)
        tensors = evidence.tensors_of(call)
        storages = columns.storage[tensors].tolist()
        wides = is_wide[tensors].tolist()
        if call in promoting:
            read = zip(storages[:n_inputs], wides, strict=False)
            made = [(s, int(evidence.maker[s])) for s, one_is in read if one_is]
            widened.update(s for s, maker in made if maker >= 0 and not n_read[maker])
        elif widened.isdisjoint(storages[:n_inputs]):
            continue
        pairs = zip(storages[n_inputs:], wides[n_inputs:], strict=True)
        widened.update(storage for storage, one_is in pairs if one_is)
    return [*widened]


def find_casts(
    evidence: "Evidence", widened: set[int], narrow: torch.dtype
) -> Iterator[tuple[int, int]]:
    """Yield what would be narrow, and what it is cast to, of each cast back."""
    is_cast = evidence.calls_of(
        lambda s: s.op == CAST and [t.dtype for t in s.outputs] == [narrow]
    )
    for call in np.flatnonzero(is_cast).tolist():
        tensors = evidence.tensors_of(call)
        source, copy = evidence.columns.storage[tensors].tolist()
        if source in widened:
            yield source, copy
