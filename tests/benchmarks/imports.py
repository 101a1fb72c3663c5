"""What ``import meta_magic`` adds to ``import torch``, in fresh processes.

``python -m tests.benchmarks.imports`` prints a Markdown table.
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

LAZY = ("plotly", "ipywidgets", "pandas", "IPython")
"""What must not be imported before it is needed."""

VARIANTS = {
    "torch": "",
    "torch, meta_magic": "import meta_magic",
    "torch, meta_magic.record": "import meta_magic; meta_magic.record",
}
"""What a process runs after ``import torch``; the last is what a recording needs."""

PROGRAM = """
import json, sys, time
started = time.perf_counter()
import torch
middle = time.perf_counter()
{statement}
ended = time.perf_counter()
loaded = [name for name in {lazy} if name in sys.modules]
print(json.dumps([ended - started, ended - middle, loaded]))
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportRun:
    """What one fresh process found.

    Attributes:
        seconds: Wall time of all its imports.
        seconds_after_torch: Wall time of what came after ``import torch``.
        loaded: Those of ``LAZY`` that were imported in the end.
    """

    seconds: float
    seconds_after_torch: float
    loaded: tuple[str, ...]


def run_imports(statement: str) -> ImportRun:
    """Import torch, then run a statement, in a fresh process."""
    program = PROGRAM.format(statement=statement, lazy=LAZY)
    finished = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, check=True, text=True
    )
    seconds, seconds_after_torch, loaded = json.loads(finished.stdout)
    return ImportRun(
        seconds=seconds, seconds_after_torch=seconds_after_torch, loaded=tuple(loaded)
    )


def format_row(name: str, runs: Sequence[ImportRun], baseline: float) -> str:
    """Return a variant's line of the table.

    Args:
        name: The variant.
        runs: Its processes.
        baseline: Median seconds of ``import torch`` alone.
    """
    seconds = median(run.seconds for run in runs)
    after_torch = median(run.seconds_after_torch for run in runs)
    loaded = ", ".join(runs[0].loaded) or "none"
    return (
        f"| {name} | {seconds:.3f} | {seconds - baseline:+.3f} "
        f"| {after_torch:.4f} | {loaded} |"
    )


def main() -> None:
    """Print the table; the variants take turns, after a round that warms the disk."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    n_rounds = parser.parse_args().rounds
    runs: dict[str, list[ImportRun]] = {name: [] for name in VARIANTS}
    for _ in range(n_rounds + 1):
        for name, statement in VARIANTS.items():
            runs[name].append(run_imports(statement))
    baseline = median(run.seconds for run in runs["torch"][1:])
    print(f"seconds, median of {n_rounds} fresh processes each\n")
    print(f"| imported | all | less torch alone | after torch | of {', '.join(LAZY)} |")
    print("|---|--:|--:|--:|---|")
    for name in VARIANTS:
        print(format_row(name, runs[name][1:], baseline))


if __name__ == "__main__":
    main()
