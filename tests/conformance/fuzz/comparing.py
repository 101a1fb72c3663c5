"""How a recorded program differs from the same one on the CPU."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

import meta_magic as mm
from tests.benchmarks.record import forget_signatures
from tests.conformance.exactness import as_bits
from tests.conformance.fuzz.programs import Program
from tests.conformance.fuzz.running import Run, run_plain, run_real, run_recorded
from tests.conformance.model_runs import WRAPPERS, is_reading

__all__ = ["KINDS", "Finding", "check", "worst"]

KINDS = ("silent", "crashed", "refused", "noted", "accepted", "unstable")
"""What may be found, the worst first: other than on the CPU without a word; an error
where the CPU has none; one of ours, with its reason; other than on the CPU, and a note
says so; no error, or another one, where the CPU has one; a program that is not the same
in two real runs."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One difference.

    Attributes:
        kind: One of ``KINDS``.
        check: What was compared.
        text: What differs.
        about: What it is about, without the names of variables, to tell causes apart.
    """

    kind: str
    check: str
    text: str
    about: str = ""


def worst(findings: list[Finding]) -> Finding | None:
    """Return the finding that counts for a program, None if there is none."""
    return min(findings, key=lambda f: KINDS.index(f.kind), default=None)


def check(program: Program) -> list[Finding]:
    """Run a program in all ways, and return in what they differ."""
    plain, real = run_plain(program), run_real(program)
    if plain.error != real.error or list(differing_values(plain, real.tensors())):
        return [Finding("unstable", "real runs", "two real runs differ")]
    forget_signatures()
    cold = run_recorded(program, cache=True)
    if plain.error or cold.error:
        return list(compare_errors(plain, cold))
    warm = run_recorded(program, replay_all, cache=True)
    off = run_recorded(program, cache=False)
    findings = [*compare_runs(real, cold), *compare_replayed(plain, warm)]
    for other, name in ((warm, "warm"), (off, "off")):
        findings += compare_traces(other, cold, name)
        met = {f.about for f in findings}
        again = [f for f in compare_runs(real, other) if f.about not in met]
        findings += [replace(f, check=f"{f.check}, {name}") for f in again]
    real_made = run_recorded(program, materialize_all, cache=True)
    return [*findings, *compare_materialized(plain, real_made)]


def compare_errors(real: Run, recorded: Run) -> Iterator[Finding]:
    """Yield how what two runs raise differs."""
    a, b = real.error, recorded.error
    if b is None:
        yield Finding("accepted", "error", f"the CPU raises {a}", a.name)
    elif a is None or b.line < a.line:
        is_ours = b.name in vars(mm) or b.name == "ValueLimitError"
        kind = "refused" if is_ours else "crashed"
        yield Finding(kind, "error", str(b), f"{b.name}: {b.text[:40]}")
    elif (a.name, a.line) != (b.name, b.line):
        yield Finding("accepted", "error", f"{b}, on the CPU {a}", a.name)


def compare_runs(real: Run, recorded: Run) -> Iterator[Finding]:
    """Yield how operators, metadata and plain values of a recorded run differ."""
    for n, log in real.logs.items():
        yield from compare_operators(log.made, recorded.traces[n])
    yield from compare_values(real, recorded)
    wanted, met = real.tensors(), recorded.tensors()
    if wanted.keys() != met.keys():
        text = ", ".join(sorted(wanted.keys() ^ met.keys()))
        yield Finding("silent", "tensors", f"only one run has {text}")
        return
    for name in wanted:
        for fact, (a, b) in differing_facts(met[name], wanted[name]):
            text = f"{name}: {fact} is {a}, not {b}"
            yield Finding("silent", "metadata", text, fact)
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


def compare_operators(made: list[Any], trace: mm.Trace) -> Iterator[Finding]:
    """Yield how the first operator that differs does so."""
    wanted = [m for m in made if m.op not in WRAPPERS]
    met = [op for op in trace.ops if op.op not in WRAPPERS and not is_reading(op)]
    for a, b in zip(wanted, met, strict=False):
        shapes = [(t.shape, t.dtype) for t in b.outputs]
        strides = [t.stride for t in b.outputs]
        if a.op != b.op:
            yield Finding("silent", "operators", f"{b.op}, not {a.op}", a.op + b.op)
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
    "version": lambda t: None if t.is_inference() else t._version,
}


def differing_facts(
    met: Tensor, wanted: Tensor, names: tuple[str, ...] = tuple(FACTS)
) -> Iterator[tuple[str, tuple[Any, Any]]]:
    """Yield what two tensors are besides their values, where it differs."""
    for name in names:
        a, b = FACTS[name](met), FACTS[name](wanted)
        if a != b:
            yield name, (a, b)


def partition(tensors: Mapping[str, Tensor]) -> list[list[str]]:
    """Return the names of tensors that share a storage."""
    groups: dict[int, list[str]] = {}
    for name, tensor in tensors.items():
        if tensor.layout is torch.strided:
            groups.setdefault(tensor.untyped_storage()._cdata, []).append(name)
    return sorted(group for group in groups.values() if len(group) > 1)


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
        ] + [k for k in ("modules", "notes") if getattr(trace, k) != getattr(other, k)]
        if differing:
            yield Finding("silent", f"cache {name}", str(differing), str(differing))
            return


def replay_all(run: Run) -> dict[str, Tensor]:
    """Return the values of all variables, those on meta replayed."""
    tensors = run.tensors()
    on_meta = {n: t for n, t in tensors.items() if t.is_meta and is_strided(t)}
    with mm.record(as_device="cpu") as trace, torch.no_grad():
        for tensor in on_meta.values():
            tensor.detach()
    values = mm.replay(trace, [op.outputs[0] for op in trace.ops])
    return tensors | dict(zip(on_meta, values, strict=True))


def compare_replayed(real: Run, recorded: Run) -> Iterator[Finding]:
    """Yield which variables have another value when they are replayed."""
    if isinstance(recorded.asked, Exception):
        yield describe_failure("replay", recorded.asked)
        return
    kind = "noted" if notes_of(recorded) else "silent"
    for name in differing_values(real, recorded.asked):
        yield Finding(kind, "replay", f"{name} has another value", "values")


def describe_failure(check: str, error: Exception) -> Finding:
    """Return the finding that something was not done: refused by us, or crashed."""
    kind = "refused" if isinstance(error, mm.MetaMagicError) else "crashed"
    text = f"{type(error).__name__}: {error}"
    return Finding(kind, check, text, text[:60])


def is_strided(tensor: Tensor) -> bool:
    """Whether a tensor has strides."""
    return tensor.layout is torch.strided


def notes_of(run: Run) -> list[str]:
    """Return what the traces say may make a replay differ."""
    return [text for t in run.traces.values() for text, _ in t.program.doubts]


def differing_values(real: Run, met: Mapping[str, Tensor]) -> Iterator[str]:
    """Yield the names of tensors whose bits differ from those of a real run."""
    for name, tensor in real.tensors().items():
        other = met.get(name)
        if other is None or not is_strided(tensor):
            continue
        if not torch.equal(as_bits(tensor), as_bits(other)):
            yield name


class Holder(nn.Module):
    """Holds all variables of a program, to be materialized at once."""

    def __init__(self, namespace: Mapping[str, Any]) -> None:
        super().__init__()
        for name, value in namespace.items():
            if isinstance(value, Tensor | nn.Module):
                setattr(self, name, value)


def materialize_all(run: Run) -> mm.MaterializeReport | None:
    """Make all variables real; None if all are."""
    if not any(t.is_meta for t in run.tensors().values()):
        return None
    return mm.materialize(Holder(run.namespace))


def compare_materialized(real: Run, recorded: Run) -> Iterator[Finding]:
    """Yield what differs once all variables are real, and the generators with them."""
    report = recorded.asked
    if isinstance(report, Exception):
        yield describe_failure("materialize", report)
    if not isinstance(report, mm.MaterializeReport):
        return
    kind = "noted" if report.notes or notes_of(recorded) else "silent"
    yield from compare_made(real, recorded, kind)
    for name, state in real.generators.items():
        if recorded.generators[name] != state:
            what = "own" if name[0] == "g" else name
            yield Finding(kind, "generator", f"{name} stands elsewhere", what)


def compare_made(real: Run, recorded: Run, kind: str) -> Iterator[Finding]:
    """Yield which tensors are not what they are in a real run."""
    wanted, met = real.tensors(), recorded.tensors()
    facts = ("type", "shape", "dtype", "strides", "offset", "requires_grad")
    for name, tensor in met.items():
        if tensor.is_meta:
            yield Finding("silent", "materialize", f"{name} is on meta", "on meta")
            return
        for fact, (a, b) in differing_facts(tensor, wanted[name], facts):
            text = f"{name}: {fact} is {a}, not {b}"
            yield Finding("silent", "materialize", text, fact)
    kept = {name: wanted[name] for name in met}
    if partition(kept) != partition(met):
        text = f"{partition(met)}, not {partition(kept)}"
        yield Finding("silent", "materialize", f"other aliases: {text}", "aliases")
    for name in differing_values(real, met):
        yield Finding(kind, "materialize", f"{name} has another value", "values")
