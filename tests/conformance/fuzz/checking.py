"""One program, run in all ways, and in what they differ."""

from collections.abc import Iterator
from dataclasses import replace

import meta_magic as mm
from tests.benchmarks.recorders import forget_signatures
from tests.conformance.fuzz.comparing import compare_runs, compare_traces
from tests.conformance.fuzz.findings import Finding
from tests.conformance.fuzz.programs import Program
from tests.conformance.fuzz.running import Run, run_plain, run_real, run_recorded
from tests.conformance.fuzz.values import (
    compare_materialized,
    compare_replayed,
    differing_values,
    materialize_all,
    replay_all,
)


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
