"""Advice on tensors that need not be: optimizer temporaries, copies, wide dtypes.

Read ``find_foreach_temporaries``, ``find_idle_copies`` and ``find_wide_dtypes``.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from math import prod
from typing import TYPE_CHECKING, Final

import numpy as np
import torch

from meta_magic.cost.advice.evidence import Advice
from meta_magic.cost.storage_lives import CATEGORIES
from meta_magic.trace.signature import COPIES, span_nbytes
from meta_magic.trace.units import format_bytes

if TYPE_CHECKING:
    from meta_magic.cost.advice.evidence import Evidence
    from meta_magic.cost.program_columns import Integers
    from meta_magic.trace.signature import Signature

FOREACH: Final = "aten._foreach_"

LEAST_SHARE: Final = 0.01
"""Share of the peak from which there is an advice."""


def find_foreach_temporaries(evidence: "Evidence") -> Iterator[Advice]:
    """Yield an advice if temporaries of all parameters are alive at the peak."""
    is_foreach = evidence.calls_of(lambda s: s.op.startswith(FOREACH))
    is_step = is_foreach & evidence.is_in("optimizer")
    is_temporary = evidence.is_of("temporary") & (evidence.maker >= 0)
    storages = np.flatnonzero(is_temporary & is_step[evidence.maker])
    saved = evidence.save_without(storages)
    if saved >= LEAST_SHARE * evidence.peak_nbytes > 0:
        makers = np.unique(evidence.maker[storages])
        yield Advice(
            kind="foreach",
            text="the optimizer takes all parameters at once, and its temporaries "
            f"raise the peak by {format_bytes(saved)}; with fused=True it has none, "
            "with foreach=False one parameter's",
            lines=evidence.lines_of(makers.tolist()),
            nbytes=int(evidence.nbytes[storages].sum()),
            peak_nbytes=saved,
            choice="fused",
        )


HELD: Final = [*map(CATEGORIES.index, ("parameter", "buffer", "optimizer_state"))]
"""Categories of storages that modules and optimizers may write later."""

SPARED: Final = frozenset({"torch.Tensor.clone", "torch.clone", "torch.Tensor.to"})
"""Functions whose first argument could be used instead of the copy."""


def find_idle_copies(evidence: "Evidence") -> Iterator[Advice]:
    """Yield an advice for each call site with copies that are not needed.

    A copy that no call reads was made for other code: it is left out.
    """
    chosen = evidence.calls_of(is_plain_copy) & evidence.is_own
    chosen &= evidence.is_in("forward", "other")
    calls = np.flatnonzero(chosen)
    if not len(calls):
        return
    last_write = evidence.last_call(evidence.columns.is_written)
    last_read = evidence.last_call(~evidence.columns.is_made)
    calls_by_site = defaultdict(list)
    for call in calls.tolist():
        copy = int(evidence.columns.storage[evidence.tensors_of(call)][-1])
        if last_read[copy] > call and is_idle(evidence, call, last_write):
            calls_by_site[int(evidence.columns.call_site[call])].append(call)
    for copying in calls_by_site.values():
        copies = evidence.columns.first[np.asarray(copying) + 1] - 1
        storages = evidence.columns.storage[copies]
        # The source would live as long as both: the saving is while both are alive.
        pairs = evidence.columns.storage[[copies - 1, copies]]
        both = np.minimum(*evidence.stop[pairs])
        nbytes = int(evidence.nbytes[storages].sum())
        if nbytes:
            found = evidence.call_sites_of(copying)
            sites = evidence.program.call_sites
            spared = found if {sites[n].function for n in found} <= SPARED else ()
            times = f"{len(copying):,} copies" if len(copying) > 1 else "a copy"
            yield Advice(
                kind="copy",
                text=f"{times} of the same layout ({format_bytes(nbytes)}): neither "
                "is written while both are alive, so use the source instead",
                lines=evidence.lines_of(copying),
                nbytes=nbytes,
                peak_nbytes=evidence.save_between(storages, np.asarray(copying), both),
                choice="no copy" if spared else None,
                call_sites=spared,
            )


LAYOUT: Final = (
    *("shape", "stride", "dtype", "device", "placement", "is_conj", "is_neg"),
)
"""Fields of a geometry that a copy shares with its source."""


def is_plain_copy(signature: "Signature") -> bool:
    """Whether a call copies a tensor with the same layout, dtype and device."""
    n_tensors = len(signature.inputs), len(signature.outputs)
    if signature.op not in COPIES or n_tensors != (1, 1):  # none returned: it raised
        return False
    (source,), (copy,) = signature.inputs, signature.outputs
    is_array = bool(source.shape) and source.stride is not None
    return is_array and all(
        getattr(source, name) == getattr(copy, name) for name in LAYOUT
    )


def is_idle(evidence: "Evidence", call: int, last_write: "Integers") -> bool:
    """Whether the source could be used instead of its copy.

    Not if one of them is written, or may be written after the block as both are alive;
    and not if a part of a larger storage is copied so that the rest can be freed.
    """
    source, copy = evidence.columns.storage[evidence.tensors_of(call)].tolist()
    signature = evidence.program.signatures[evidence.columns.signature[call]]
    source_end, copy_end = (
        (int(evidence.stop[storage]), bool(evidence.is_left[storage]))
        for storage in (source, copy)
    )
    is_part = evidence.nbytes[source] > span_nbytes(signature.outputs[0])
    is_leaf = any(copy == storage for _, storage in evidence.program.facts.accumulated)
    is_held = evidence.memory.category[copy] in HELD
    both_outlive = source_end[1] and copy_end[1]
    return (
        max(last_write[source], last_write[copy]) <= call
        and not (both_outlive or is_leaf or is_held)
        and not (is_part and copy_end > source_end)
    )


CAST: Final = "aten._to_copy.default"

MIXING: Final = ("norm", "to_copy", "embedding", "index_put", "scatter", "autocast")
"""Parts of the names of operators that take several dtypes on purpose."""


def find_wide_dtypes(evidence: "Evidence") -> Iterator[Advice]:
    """Yield an advice for each call site where promotion makes wider numbers.

    Where float32 and float64 are combined, the result and all that is computed from it
    are float64. A cast, or a reduction to one number, is intended.
    """
    chosen = evidence.calls_of(is_promoting) & evidence.is_own
    chosen &= evidence.is_in("forward", "other")
    calls_by_site: dict[tuple[int, torch.dtype, torch.dtype], list[int]]
    calls_by_site = defaultdict(list)
    usual = None
    for call in np.flatnonzero(chosen).tolist():
        usual = find_usual_dtype(evidence) if usual is None else usual
        signature = evidence.program.signatures[evidence.columns.signature[call]]
        wide = signature.outputs[0].dtype
        narrow = min(list_floats(signature), key=lambda dtype: dtype.itemsize)
        if narrow.itemsize >= usual.itemsize < wide.itemsize:
            site = int(evidence.columns.call_site[call])
            calls_by_site[site, wide, narrow].append(call)
    for (_, wide, narrow), calls in calls_by_site.items():
        yield describe(evidence, calls, wide, narrow)


def describe(
    evidence: "Evidence", calls: Sequence[int], wide: torch.dtype, narrow: torch.dtype
) -> Advice:
    """Return the advice on calls of one call site."""
    columns = evidence.columns
    widened = find_widened(evidence, calls, wide)
    shares = np.ones(columns.n_storages)
    shares[widened] = narrow.itemsize / wide.itemsize
    stop = np.full(columns.n_storages, columns.n_calls)
    for source, copy in find_casts(evidence, {*widened}, narrow):
        if evidence.stop[source] > evidence.stop[copy]:
            shares[copy] = 0
        else:  # the source is narrow already, and is alive instead of its cast
            stop[source] = evidence.maker[copy]
    nbytes = int((evidence.nbytes * (1 - shares)).sum())
    makers = list_factories(evidence, widened, min(calls))
    wider, narrower = (str(dtype).removeprefix("torch.") for dtype in (wide, narrow))
    return Advice(
        kind="dtype",
        text=f"{narrower} is combined with {wider} and becomes {wider}, as do "
        f"later results: {format_bytes(nbytes)} more; make the other one {narrower}",
        lines=evidence.lines_of(calls),
        nbytes=nbytes,
        peak_nbytes=evidence.save_by(shares, stop),
        choice=f"dtype={narrower}" if makers else None,
        call_sites=evidence.call_sites_of(makers),
    )


def list_factories(
    evidence: "Evidence", widened: Sequence[int], end: int
) -> Sequence[int]:
    """Return the factory calls before ``end`` that made a widened storage."""
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


def list_floats(signature: "Signature") -> list[torch.dtype]:
    """Return the floating dtypes of the inputs that have dimensions."""
    return [
        geometry.dtype
        for geometry in signature.inputs
        if geometry.shape and geometry.dtype.is_floating_point
    ]


def find_usual_dtype(evidence: "Evidence") -> torch.dtype:
    """Return the dtype of most parameter elements, or else of most output elements."""
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
    """Return the storages that would be narrower.

    What the calls return, all that is computed from it, and inputs of factories.
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
    """Yield (source, copy) of each cast of a widened storage back to ``narrow``."""
    is_cast = evidence.calls_of(
        lambda s: s.op == CAST and [t.dtype for t in s.outputs] == [narrow]
    )
    for call in np.flatnonzero(is_cast).tolist():
        tensors = evidence.tensors_of(call)
        source, copy = evidence.columns.storage[tensors].tolist()
        if source in widened:
            yield source, copy
