"""How what a recording says differs from what the CPU did."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

import torch
from torch import Tensor

import meta_magic as mm
from meta_magic.recording.intercept.moves import UNPICKLED
from tests.conformance.fuzz.findings import Finding
from tests.conformance.fuzz.running import Run
from tests.conformance.model_runs import WRAPPERS, Made, is_reading

VALUES = {"aten._linalg_svd.default": 1, "aten._linalg_eigh.default": 0}
"""Which of what it returns are singular values or eigenvalues, by operator.

``svdvals``, ``eigvalsh``, ``eigvals`` and what is made of them compute vectors, too,
where a gradient needs them or a mode looks on, as in a run that is logged: see
``isTensorSubclassLike`` in ``BatchLinearAlgebra.cpp``. A run by itself, which is what
is recorded, leaves them empty.
"""
EIGENVALUES = "aten.linalg_eig.default", "aten._linalg_eigvals.default"
"""The operator that is logged of ``eigvals``, and the one that is recorded."""


OF_ZEROS: Final = "aten.eq.Scalar"
OF_PRODUCTS: Final = {"aten.clone.default", "aten.ones.default", "aten.view.default"}
"""How the gradient of ``prod`` begins where no mode looks on, and below one: see
``prod_backward`` in ``FunctionsManual.cpp``. What follows is not compared."""


def compare_runs(plain: Run, logged: Run, recorded: Run) -> Iterator[Finding]:
    """Yield how operators, metadata and plain values of a recorded run differ.

    Args:
        plain: The real run, without a mode: below one, torch counts no writes of many
            tensors at a time.
        logged: The real run whose operators are known.
        recorded: The recorded one.
    """
    for n, log in logged.logs.items():
        found = compare_operators(log.made, recorded.traces[n])
        yield from noted_where_pickled(found, recorded)
    yield from compare_values(plain, recorded)
    wanted, met, below_mode = plain.tensors(), recorded.tensors(), logged.tensors()
    if wanted.keys() != met.keys():
        text = ", ".join(sorted(wanted.keys() ^ met.keys()))
        yield Finding("silent", "tensors", f"only one run has {text}")
        return
    for name in wanted:
        differing = dict(differing_facts(met[name], wanted[name]))
        if is_between(below_mode[name], met[name], wanted[name]):
            differing.pop(UNCOUNTED, None)
        if differing.get("grad_fn") == RESHAPED:
            differing.pop("grad_fn")
        for fact, (a, b) in differing.items():
            text = f"{name}: {fact} is {a}, not {b}"
            finding = Finding("silent", "metadata", text, fact)
            yield from noted_where_pickled([finding], recorded)
    if partition(wanted) != partition(met):
        text = f"{partition(met)}, not {partition(wanted)}"
        yield Finding("silent", "aliases", f"other tensors share a storage: {text}")


def compare_values(real: Run, recorded: Run) -> Iterator[Finding]:
    """Yield which plain values differ."""
    wanted, met = real.values(), recorded.values()
    for name in wanted:
        if wanted[name] != met.get(name):
            text = f"{name} is {met.get(name)}, not {wanted[name]}"
            kind = "noted" if notes_of(recorded) else "silent"
            yield Finding(kind, "plain values", text, "plain values")


UNRECORDED = "aten.is_pinned.default", "aten.alias.default"
"""What torch asks of a tensor whose memory it gives out, which is real there alone; and
what it gives a class by, unseen below a recording and not always below another mode."""


def compare_operators(made: list[Any], trace: mm.Trace) -> Iterator[Finding]:
    """Yield how the first operator that differs does so."""
    wanted = [m for m in made if m.op not in (*WRAPPERS, *UNRECORDED)]
    met = [op for op in trace.ops if op.op not in (*WRAPPERS, *UNRECORDED)]
    met = [op for op in met if not is_move(op)]
    for logged, b in zip(wanted, met, strict=False):
        if b.op.startswith("nn.init."):  # many operators for real, one row here
            return
        a = without_mode(logged, b)
        shapes = [(t.shape, t.dtype) for t in b.outputs]
        strides = [t.stride for t in b.outputs]
        if b.op == OF_ZEROS and a.op in OF_PRODUCTS:
            return
        if a.op != b.op:
            is_told = any(n.kind == "failed" and a.op in n.text for n in trace.notes)
            kind = "noted" if is_told else "silent"  # that it found no value to read
            yield Finding(kind, "operators", f"{b.op}, not {a.op}", a.op + b.op)
            return
        if a.metadata != shapes:
            text = f"{b.op} gives {shapes}, not {a.metadata}"
            yield Finding("silent", "shapes and dtypes", text, a.op)
            return
        if a.strides != strides:
            text = f"{b.op} gives strides {strides}, not {a.strides}"
            yield Finding("silent", "strides", text, a.op)
            return
    if len(wanted) != len(met):
        more = [m.op for m in (*wanted, *met)[min(len(wanted), len(met)) :]][:1]
        text = f"{len(met)} operators, not {len(wanted)}"
        yield Finding("silent", "operators", text, str(more))


def without_mode(logged: Made, met: mm.OpCall) -> Made:
    """Return what an operator returned as if no mode had looked on, by ``VALUES``."""
    shapes, strides = logged.metadata, logged.strides
    if (logged.op, met.op) == EIGENVALUES:
        return Made(met.op, shapes[:1], strides[:1])
    values = VALUES.get(logged.op)
    vectors = [t for n, t in enumerate(met.outputs) if n != values]
    if values is None or logged.op != met.op or any(t.shape != (0,) for t in vectors):
        return logged
    shapes = [s if n == values else ((0,), s[1]) for n, s in enumerate(shapes)]
    return Made(
        met.op, shapes, [s if n == values else (1,) for n, s in enumerate(strides)]
    )


OF_PICKLED = frozenset({"offset", "aten.set_.source_Storage"})
"""What pickle keeps on the CPU alone: where a tensor begins in its storage, and all of
that."""


def noted_where_pickled(found: Iterable[Finding], run: Run) -> Iterator[Finding]:
    """Yield findings; of what was pickled on meta a note says that it is not all."""
    is_pickled = UNPICKLED in notes_of(run)
    for finding in found:
        is_noted = is_pickled and finding.about in OF_PICKLED
        yield replace(finding, kind="noted") if is_noted else finding


def is_move(op: mm.OpCall) -> bool:
    """Whether a call takes a value off the device or brings one there."""
    is_copy = op.op == "aten._to_copy.default"
    is_brought = is_copy and op.inputs[0].is_real and not op.outputs[0].is_real
    return is_reading(op) or is_brought


UNCOUNTED = "version"
"""Where torch counts otherwise as soon as any mode looks on, so does a recording.

``one_hot`` then writes its zeros uncounted, ``matrix_rank`` and the gradients of
``max`` and of an index write nothing, and autograd sums up gradients anew, or copies
one that it would take as it is. What a recording added, it would have to know for each
storage, to tell writes that nobody recorded from these. It adds writes of lists of
tensors, and so may stand in between.
"""

RESHAPED = "ViewBackward0", "ReshapeAliasBackward0"
"""The history of a ``reshape`` that is a view of what is not contiguous: below any
mode, which sees a plain view, and without.

Source:
    ``reshape_symint`` and ``isTensorSubclassLike`` of torch 2.13.
"""

FACTS: dict[str, Callable[[Tensor], Any]] = {
    "type": type,
    "shape": lambda t: tuple(t.shape),
    "dtype": lambda t: t.dtype,
    "strides": lambda t: t.stride() if t.layout is torch.strided else None,
    "offset": lambda t: t.storage_offset() if t.layout is torch.strided else None,
    "requires_grad": lambda t: t.requires_grad,
    "is_leaf": lambda t: t.is_leaf,
    "grad_fn": lambda t: type(t.grad_fn).__name__,
    "is_conj": lambda t: t.is_conj(),
    "is_neg": lambda t: t.is_neg(),
    "is_inference": lambda t: t.is_inference(),
    UNCOUNTED: lambda t: count_writes(t),  # noqa: PLW0108  defined below
}


def count_writes(tensor: Tensor) -> int | None:
    """Return how often a tensor was written; None where torch does not count it.

    One of inference mode that was given other data is none any more, and has no count.
    """
    try:
        return tensor._version
    except RuntimeError:
        return None


def differing_facts(
    met: Tensor, wanted: Tensor, names: tuple[str, ...] = tuple(FACTS)
) -> Iterator[tuple[str, tuple[Any, Any]]]:
    """Yield what two tensors are besides their values, where it differs."""
    for name in names:
        a, b = FACTS[name](met), FACTS[name](wanted)
        if a != b:
            yield name, (a, b)


def is_between(below_mode: Tensor, met: Tensor, plain: Tensor) -> bool:
    """Whether a tensor was written as often as below a mode, or up to as without."""
    counts = [count_writes(tensor) for tensor in (below_mode, met, plain)]
    if None in counts:
        return False
    return sorted(counts)[1] == counts[1]


def partition(tensors: Mapping[str, Tensor]) -> list[list[str]]:
    """Return the names of tensors that share memory."""
    groups: dict[int, list[str]] = {}
    for name, tensor in tensors.items():
        if tensor.layout is torch.strided:
            storage = tensor.untyped_storage()  # DLPack makes two of one memory
            address = 0 if tensor.is_meta else storage.data_ptr()
            groups.setdefault(address or storage._cdata, []).append(name)
    return sorted(group for group in groups.values() if len(group) > 1)


TIMED = "unasked"
"""The kind of note that depends on how long the cell took."""


def compare_traces(a: Run, b: Run, name: str) -> Iterator[Finding]:
    """Yield which parts of the traces of two recorded runs differ."""
    if a.error != b.error:
        yield Finding("silent", f"cache {name}", f"{a.error}, not {b.error}", "error")
        return
    for n, trace in a.traces.items():
        other = b.traces[n]
        fields = trace.program.__dataclass_fields__
        differing = [
            key
            for key in fields
            if getattr(trace.program, key) != getattr(other.program, key)
        ] + (["modules"] if trace.modules != other.modules else [])
        noted = [[n for n in t.notes if n.kind != TIMED] for t in (trace, other)]
        differing += ["notes"] if noted[0] != noted[1] else []
        if differing:
            notes = [note.text for note in {*noted[0]} ^ {*noted[1]}]
            positions = {*trace.program.positions} ^ {*other.program.positions}
            text = f"{differing}; of one alone: {notes}, {sorted(map(str, positions))}"
            yield Finding("silent", f"cache {name}", text, str(differing))
            return


def notes_of(run: Run) -> list[str]:
    """Return what the traces say may make a replay differ."""
    return [text for t in run.traces.values() for text, _ in t.program.caveats]
