"""What recorded ranks hold and send, beside real processes.

``python -m tests.conformance.worlds [SCRIPT ...] --worlds 2,4`` runs each script of
``world_scripts`` by torchrun with gloo (``world_truth.py``, which knows nothing of
recordings), and records all its ranks. It prints for each rank whether the peak of its
memory, and the list of its collectives, are those of the real process. gloo lets go of
memory at moments that vary: the least peak of several real runs counts (``--runs``).
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

from meta_magic import record_ranks

SCRIPTS = Path(__file__).parent / "world_scripts"
HELPERS = ("tiny", "plans")
NAMES = sorted(path.stem for path in SCRIPTS.glob("*.py") if path.stem not in HELPERS)
TRUTH = Path(__file__).parent / "world_truth.py"
SECONDS = 120


class Compared(NamedTuple):
    """One rank beside its real process.

    Attributes:
        rank: The rank.
        peak: Bytes at its peak, as recorded.
        real_peak: Bytes at the peak of the real process.
        sent: Its collectives as recorded: kind, ranks, bytes, dtype, reduction.
        real_sent: Those of the real process.
        error: What ended the recording, or None.
    """

    rank: int
    peak: int
    real_peak: int
    sent: list
    real_sent: list
    error: str | None


def run_for_real(name, world, folder):
    """Run a script by torchrun; return what each rank held and sent."""
    out = Path(folder) / name
    subprocess.run(
        [
            *(sys.executable, "-W", "ignore", "-m", "torch.distributed.run"),
            *("--standalone", f"--nproc-per-node={world}"),
            *(str(TRUTH), str(SCRIPTS / f"{name}.py"), str(out)),
        ],
        check=True,
        timeout=SECONDS,
        capture_output=True,
    )
    paths = [Path(f"{out}.{rank}.json") for rank in range(world)]
    return [json.loads(path.read_text()) for path in paths]


def compare(name, world, n_runs=1):
    """Record all ranks of a script; return them beside their real processes."""
    with tempfile.TemporaryDirectory() as folder:
        runs = [run_for_real(name, world, folder) for _ in range(n_runs)]
    traces = record_ranks(SCRIPTS / f"{name}.py", world, "all", timeout=SECONDS)
    found = []
    for rank, trace in traces.items():
        sent = [
            [one.kind, list(one.ranks), one.nbytes, one.dtype, one.reduce]
            for one in trace.sent
        ]
        real = [run[rank] for run in runs]
        peak = min(max(one["timeline"], default=0) for one in real)
        found.append(
            Compared(
                rank=rank,
                peak=trace.memory.peak_nbytes,
                real_peak=peak,
                sent=sent,
                real_sent=real[0]["sent"],
                error=trace.error,
            )
        )
    return found


def format_rank(one):
    """Return a rank as text: its peak and number of collectives, ``=`` where equal."""
    is_same = one.peak == one.real_peak
    peak = f"{one.peak:,} =" if is_same else f"{one.peak:,}/{one.real_peak:,}"
    sent = f"{len(one.sent)} {'=' if one.sent == one.real_sent else '!'}"
    return f"{peak} {sent}" + (f" ({one.error})" if one.error else "")


def main():
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", default=NAMES)
    parser.add_argument("--worlds", default="2,4")
    parser.add_argument("--runs", type=int, default=1)
    given = parser.parse_args()
    print("| script | ranks | peak of each rank, collectives |\n|---|--:|---|")
    for name in given.names:
        for world in map(int, given.worlds.split(",")):
            found = compare(name, world, given.runs)
            print(f"| {name} | {world} | {', '.join(map(format_rank, found))} |")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
