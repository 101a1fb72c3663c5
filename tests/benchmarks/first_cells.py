"""What the first cell of a kernel takes, where torch is imported already.

``python -m tests.benchmarks.first_cells`` prints a Markdown table: CPU time of
``%load_ext meta_magic`` and of a ``%%meta`` cell, beside the same code on plain meta.
Run it with the bytecode of the package compiled, as an installed one is.
"""

import argparse
import json
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from tests.integration.kernels import RunningKernel

CELLS = {
    "Linear": "torch.nn.Linear(4, 3)(torch.ones(2, 4))",
    "arithmetic": "y = (torch.ones(3, 4) * 2 + 1).sum()",
    "convolution": "y = torch.nn.Conv2d(3, 8, 3)(torch.ones(2, 3, 8, 8))",
    "attention": "q = torch.ones(2, 4, 8, 16)\n"
    "y = torch.nn.functional.scaled_dot_product_attention(q, q, q)",
    "backward, SGD": "model = torch.nn.Linear(4, 3)\n"
    "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
    "model(torch.ones(2, 4)).sum().backward()\noptimizer.step()",
}

START = "import sys, time, torch\nstarted = time.process_time()"
TELL = """import json
print(json.dumps([time.process_time() - started, "torch._dynamo" in sys.modules]))"""


def run_first(*cells: str) -> tuple[float, bool]:
    """Return seconds of a new kernel's first cells, and whether dynamo is imported."""
    with TemporaryDirectory() as folder:
        kernel = RunningKernel(Path(folder), is_loaded=False)
        try:
            for cell in (START, *cells):
                kernel.run(cell)
            seconds, is_there = json.loads(kernel.run(TELL).stream("stdout"))
        finally:
            kernel.stop()
    return seconds, is_there


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    n_rounds = parser.parse_args().rounds
    print("| first cell | plain meta, s | with the report, s | imports dynamo |")
    print("|---|--:|--:|---|")
    for name, cell in CELLS.items():
        ways = (
            ("torch.set_default_device('meta')", cell),
            ("%load_ext meta_magic", f"%%meta\n{cell}"),
        )
        runs = [[run_first(*cells) for cells in ways] for _ in range(n_rounds)]
        plain, ours = (median(run[at][0] for run in runs) for at in (0, 1))
        are = ", ".join("yes" if is_there else "no" for _, is_there in runs[-1])
        print(f"| {name} | {plain:.2f} | {ours:.2f} | {are} |", flush=True)


if __name__ == "__main__":
    main()
