"""Count a machine's instructions for one small recording; by hand, for it is slow.

Two processes import torch and meta_magic and record the cell twice, for what is done
once alone; one of them then records it some times more. What it needs more, divided by
these times, is the recording's, with the model's own Python in it. Only instructions
of the process itself are counted, none of the kernel's.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

N_RUNS: Final = 5

PROGRAM: Final = """
import gc, sys, torch
import meta_magic as mm
def record():
    with mm.record(as_device="cpu"):
        model(torch.zeros(2, 5, 64))
with torch.device("meta"):
    layer = torch.nn.TransformerEncoderLayer(64, 4, batch_first=True)
    model = torch.nn.TransformerEncoder(layer, 6)
gc.disable()
for _ in range(2 + int(sys.argv[1])):
    record()
"""

PERF: Final = ("perf", "stat", "-x,", "-e", "instructions:u")
VALGRIND: Final = ("valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null")


def print_instructions() -> None:
    """Print the instructions of one recording, and what counted them."""
    for tool, count in (("perf", count_with_perf), ("valgrind", count_with_valgrind)):
        n_before = count(0) if shutil.which(tool) else None
        if n_before is None:
            continue
        n_after = count(N_RUNS)
        per_run = (n_after - n_before) / N_RUNS
        print(f"{per_run / 1e6:.1f} million instructions a recording, by {tool}")
        return
    sys.exit("neither perf nor valgrind counts instructions on this machine")


def count_with_perf(n_runs: int) -> int | None:
    """Return the instructions of a process; None where there is no counter for them."""
    with TemporaryDirectory() as folder:
        output = Path(folder, "perf.csv")
        run(*PERF, "-o", str(output), n_runs=n_runs)
        for line in output.read_text().splitlines():
            number, _, name, *_ = [*line.split(","), "", ""]
            if name.startswith("instructions") and number.isdecimal():
                return int(number)
    return None


def count_with_valgrind(n_runs: int) -> int | None:
    """Return the instructions of a process, run as valgrind imitates a processor."""
    words = run(*VALGRIND, n_runs=n_runs).partition("Collected :")[2].split()
    return int(words[0]) if words else None


def run(*tool: str, n_runs: int) -> str:
    """Run the program under a tool, and return what is written to its stderr."""
    finished = subprocess.run(
        [*tool, sys.executable, "-c", PROGRAM, str(n_runs)],
        stderr=subprocess.PIPE,
        text=True,
        check=True,
        env={**os.environ, "PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1"},
    )
    return finished.stderr
