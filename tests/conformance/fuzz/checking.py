"""One program, run in all ways, and in what they differ."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

import meta_magic as mm
from tests.benchmarks.recorders import forget_signatures
from tests.conformance.fuzz.comparing import (
    compare_runs,
    compare_traces,
    differing_facts,
    noted_where_pickled,
    notes_of,
    partition,
)
from tests.conformance.fuzz.findings import Finding
from tests.conformance.fuzz.programs import Program
from tests.conformance.fuzz.running import Run, run_plain, run_real, run_recorded


class Replayed(NamedTuple):
    """The values of all variables, and what may be wrong with those read outside."""

    values: dict[str, Tensor]
    doubts: tuple[Any, ...]


def replay_all(run: Run) -> Replayed:
    """Replay the values of all variables that are on meta."""
    tensors = run.tensors()
    on_meta = {n: t for n, t in tensors.items() if t.is_meta and is_strided(t)}
    with mm.record(as_device="cpu") as trace, torch.no_grad():
        for tensor in on_meta.values():
            # Torch cannot make a subclass's tensor of an inference tensor.
            with torch._C.DisableTorchFunctionSubclass():
                tensor.detach()
    values = mm.replay(trace, [op.outputs[0] for op in trace.ops])
    found = tensors | dict(zip(on_meta, values, strict=True))
    return Replayed(found, trace.program.caveats if run.program.writes_outside else ())


def compare_replayed(real: Run, recorded: Run) -> Iterator[Finding]:
    """Yield which variables have another value when they are replayed."""
    if isinstance(recorded.asked, Exception):
        yield describe_failure("replay", recorded.asked)
        return
    values, doubts = recorded.asked
    kind = "noted" if doubts or notes_of(recorded) else "silent"
    for name in differing_values(real, values):
        yield Finding(kind, "replay", f"{name} has another value", "values")


def describe_failure(check: str, error: Exception) -> Finding:
    """Return the finding that something was not done: refused by us, or crashed."""
    kind = "refused" if isinstance(error, mm.MetaMagicError) else "crashed"
    text = f"{type(error).__name__}: {error}"
    return Finding(kind, check, text, text[:60])


def is_strided(tensor: Tensor) -> bool:
    """Whether a tensor has strides."""
    return tensor.layout is torch.strided


def as_bits(tensor: Tensor) -> Tensor:
    """Return the bytes of a tensor: nan equals nan in them, and -0.0 not 0.0."""
    dense = tensor.data.resolve_conj().resolve_neg().reshape(-1)
    return dense.clone(memory_format=torch.contiguous_format).view(torch.uint8)


def differing_values(real: Run, met: Mapping[str, Tensor]) -> Iterator[str]:
    """Yield the names of tensors whose bits differ from those of a real run."""
    for name, tensor in real.tensors().items():
        other = met.get(name)
        if other is None or not is_strided(tensor):
            continue
        if not torch.equal(as_bits(tensor), as_bits(other)):
            yield name


def is_differentiable(tensor: Tensor) -> bool:
    """Whether a tensor can be told to want a gradient.

    One of integers cannot, and yet says so after what wants one was written into it.
    """
    return tensor.is_floating_point() or tensor.is_complex()


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
    notes = [note for note in report.notes if "gradients were dropped" not in note]
    kind = "noted" if notes or notes_of(recorded) else "silent"
    yield from compare_made(real, recorded, kind)
    for name, state in real.generators.items():
        if recorded.generators[name] != state:
            what = "own" if name[0] == "g" else name
            yield Finding(kind, "generator", f"{name} stands elsewhere", what)


def compare_made(real: Run, recorded: Run, kind: str) -> Iterator[Finding]:
    """Yield which tensors are not what they are in a real run."""
    wanted, met = real.tensors(), recorded.tensors()
    met = {  # not those of optimizers
        name: t for name, t in met.items() if "[" not in name and name in wanted
    }
    facts = ("type", "shape", "dtype", "strides", "offset", "requires_grad")
    for name, tensor in met.items():
        if tensor.is_meta:
            yield Finding("silent", "materialize", f"{name} is on meta", "on meta")
            return
        differing = dict(differing_facts(tensor, wanted[name], facts))
        if not is_differentiable(tensor):
            differing.pop("requires_grad", None)
        for fact, (a, b) in differing.items():
            text = f"{name}: {fact} is {a}, not {b}"
            finding = Finding("silent", "materialize", text, fact)
            yield from noted_where_pickled([finding], recorded)
    kept = {name: wanted[name] for name in met}
    if partition(kept) != partition(met):
        text = f"{partition(met)}, not {partition(kept)}"
        yield Finding("silent", "materialize", f"other aliases: {text}", "aliases")
    for name in differing_values(real, met):
        yield Finding(kind, "materialize", f"{name} has another value", "values")


def check(program: Program) -> list[Finding]:
    """Run a program in all ways, and return in what they differ.

    That a value is refused which a write outside of all cells made is no refusal.
    """
    found = compare_all(program)
    if program.writes_outside:
        found = [replace(f, kind="noted") if f.kind == "refused" else f for f in found]
    return found


def compare_all(program: Program) -> list[Finding]:
    """Return in what the runs of a program differ."""
    plain, real = run_plain(program), run_real(program)
    if plain.error != real.error or list(differing_values(plain, real.tensors())):
        return [Finding("unstable", "real runs", "two real runs differ")]
    forget_signatures()
    findings: list[Finding] = []

    def compare_then_materialize(recorded: Run) -> mm.MaterializeReport | None:
        findings.extend(compare_runs(plain, real, recorded))
        return materialize_all(recorded)

    cold = run_recorded(program, compare_then_materialize, cache=True)
    if plain.error or cold.error:
        return list(compare_errors(plain, cold))
    warm = run_recorded(program, replay_all, cache=True)
    findings += compare_replayed(plain, warm)
    for other, name in ((warm, "warm"), (run_recorded(program, cache=False), "off")):
        findings += compare_traces(other, cold, name)
        met = {f.about for f in findings}
        again = [f for f in compare_runs(plain, real, other) if f.about not in met]
        findings += [replace(f, check=f"{f.check}, {name}") for f in again]
    return [*findings, *compare_materialized(plain, cold)]


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
