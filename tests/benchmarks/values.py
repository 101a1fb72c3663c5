"""What values cost that a loop asks for, beside the same loop without.

``python -m tests.benchmarks.values`` prints the table. CPU time, interleaved; each cell
is the median of some rounds.
"""

import argparse
import gc
import statistics
import time
from collections.abc import Callable
from typing import Final

import psutil
import torch
from torch import nn

import meta_magic as mm
from tests.benchmarks.loops import print_loops

N_CELLS: Final = 10


class Training:
    """A multilayer perceptron with two layers, and Adam."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))
        self.optimizer = torch.optim.Adam(self.model.parameters())

    def run(self, n_steps: int, *, has_values: bool) -> None:
        """Train for some steps, and ask for the loss of each or of none."""
        for _ in range(n_steps):
            loss = self.model(torch.randn(32, 64)).square().mean()
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            if has_values:
                loss.item()


def run_one_cell(n_steps: int, *, has_values: bool) -> int:
    """Train in one cell; return the calls that values took."""
    with mm.record() as trace:
        Training().run(n_steps, has_values=has_values)
    return count_calls(trace)


def run_cells(n_steps: int, *, has_values: bool) -> int:
    """Train in ten cells, each with the model of those before."""
    with mm.record():
        training = Training()
    n_calls = 0
    for _ in range(N_CELLS):
        with mm.record() as trace:
            training.run(n_steps // N_CELLS, has_values=has_values)
        n_calls += count_calls(trace)
    return n_calls


def count_calls(trace: mm.Trace) -> int:
    """Return how many operator calls were run for values."""
    return sum(evaluation.n_calls for evaluation in trace.program.evaluations)


def measure(run: Callable[[], int]) -> tuple[float, int, int]:
    """Return CPU seconds, the calls run for values, and the growth of memory."""
    gc.collect()
    process = psutil.Process()
    before, start = process.memory_info().rss, time.process_time()
    n_calls = run()
    return time.process_time() - start, n_calls, process.memory_info().rss - before


def build_experts() -> Callable[[], int]:
    """Return what runs Mixtral's 32 layers with a loop over the experts."""
    from transformers import MixtralConfig, MixtralForCausalLM

    with mm.record():
        config = MixtralConfig(experts_implementation="eager")
        model = MixtralForCausalLM(config)

    def run() -> int:
        with mm.record(assume="routing=uniform") as trace:
            model(torch.zeros(1, 64, dtype=torch.long))
        program = trace.program
        return len(program.evaluations) + len(program.assumptions)

    return run


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--share", type=float, default=1.0, help="of each small loop")
    options = parser.parse_args()
    run_one_cell(20, has_values=True)
    print("| loop | without, s | with, s | ratio | calls run | more memory |")
    print("| --- | --: | --: | --: | --: | --: |")
    for name, run in (("one cell", run_one_cell), (f"{N_CELLS} cells", run_cells)):
        pairs = [
            [
                measure(lambda has=has, run=run: run(options.steps, has_values=has))
                for has in (False, True)
            ]
            for _ in range(options.rounds)
        ]
        without, with_values = (
            statistics.median(p[i][0] for p in pairs) for i in (0, 1)
        )
        ratio = statistics.median(p[1][0] / p[0][0] for p in pairs)
        more = max(p[1][2] - p[0][2] for p in pairs) / 2**20
        print(
            f"| {options.steps:,} steps in {name} | {without:.1f} | {with_values:.1f} "
            f"| {ratio:.2f} | {pairs[0][1][1]:,} | {more:.0f} MiB |"
        )
    experts = build_experts()
    seconds = statistics.median(measure(experts)[0] for _ in range(options.rounds))
    print(f"\nMixtral's loop over experts: {experts():,} answers, {seconds:.1f} s")
    print_loops(options.share)


if __name__ == "__main__":
    main()
