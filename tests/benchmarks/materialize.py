"""What ``materialize()`` costs beside what one would write without it.

``python -m tests.benchmarks.materialize`` prints two Markdown tables. Times: both ways
take turns in one process, so that what loads the machine loads both alike. Memory:
each number is from a fresh process (Linux).
"""

import argparse
import gc
import os
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from multiprocessing import get_context
from pathlib import Path
from statistics import median

import torch

from tests.benchmarks.contests import (
    BUILDS,
    EMPTY,
    LAST,
    LOAD,
    READ,
    REPLAY,
    TINY,
    Contest,
    Way,
    list_contests,
    save_weights,
)
from tests.benchmarks.peaks import measure_peak

GOAL = 1.1
QUICK_SECONDS = 1.0
N_QUICK = 7
"""How many times as many rounds there are of what is quick."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """Seconds of one run of a way.

    Attributes:
        prepared: Wall time of what came before.
        wall: Wall time.
        cpu: CPU time of all threads; other processes do not count in it.
    """

    prepared: float
    wall: float
    cpu: float


def time_way(way: Way) -> Timing:
    """Run a way once; what it made is given back outside of the measured time."""
    gc.collect()
    torch.manual_seed(0)
    began = time.perf_counter()
    prepared = way.prepare()
    started, cpu_started = time.perf_counter(), time.process_time()
    result = way.run(prepared)
    ended, cpu_ended = time.perf_counter(), time.process_time()
    del result
    return Timing(
        prepared=started - began, wall=ended - started, cpu=cpu_ended - cpu_started
    )


def time_rounds(contest: Contest, n_rounds: int) -> list[tuple[Timing, Timing]]:
    """Return ours and theirs of each round; they take turns in being first."""
    rounds = []
    for n in range(n_rounds):
        ours, theirs = contest.ways
        if n % 2:
            second = time_way(theirs)
            rounds.append((time_way(ours), second))
        else:
            rounds.append((time_way(ours), time_way(theirs)))
    return rounds


def time_contest(contest: Contest, n_rounds: int) -> list[str]:
    """Measure a contest and return its row of the table of times."""
    rounds = time_rounds(contest, n_rounds)
    if max(timing.wall for pair in rounds for timing in pair) < QUICK_SECONDS:
        rounds = time_rounds(contest, n_rounds * N_QUICK)  # the first warmed up
    wall = median(ours.wall / theirs.wall for ours, theirs in rounds)
    with_recording = median((o.prepared + o.wall) / t.wall for o, t in rounds)
    is_replay = contest.name in (REPLAY, LAST)
    return [
        contest.name,
        contest.model,
        f"{1000 * median(theirs.wall for _, theirs in rounds):,.1f}",
        f"{1000 * median(ours.wall for ours, _ in rounds):,.1f}",
        f"{wall:.2f}",
        f"{median(ours.cpu / theirs.cpu for ours, theirs in rounds):.2f}",
        judge(wall),
        f"{1000 * median(o.prepared for o, _ in rounds):,.0f}" if is_replay else "",
        f"{with_recording:.2f}" if is_replay else "",
    ]


def weigh_contest(
    contest: Contest, index: int, files: tuple[Path, Path]
) -> list[list[str]]:
    """Measure the memory of both ways and return their rows of the table."""
    rows = []
    for way, name in enumerate(("materialize", "without")):
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
            peak = pool.submit(measure_peak, index, way, files).result()
        resident, anonymous = peak.resident / peak.nbytes, peak.anonymous / peak.nbytes
        planned = "" if peak.planned is None else f"{peak.planned / peak.nbytes:.3f}"
        cells = [contest.name, contest.model, name, f"{peak.nbytes / 2**20:,.0f}"]
        verdict = judge(resident) if name == "materialize" else ""
        numbers = [f"{resident:.3f}", f"{anonymous:.3f}", planned, verdict]
        rows.append(cells + numbers)
    return rows


def judge(ratio: float) -> str:
    """Say whether a ratio is as it should be."""
    return "met" if ratio <= GOAL else "missed"


def print_lines(*rows: Sequence[str]) -> None:
    """Print lines of a Markdown table as soon as they are known."""
    for row in rows:
        print(f"| {' | '.join(row)} |", flush=True)


def print_times(contests: Iterable[Contest], n_rounds: int) -> None:
    """Measure and print the table of times."""
    print(
        "\nmilliseconds, and medians of the ratios within a round; recording comes "
        f"before replay. Goal: wall time at most {GOAL}\n"
    )
    names = ["done", "model", "without", "materialize", "wall", "CPU", "goal"]
    print_lines([*names, "recording", "wall with recording"])
    print_lines(["---", "---", *["--:"] * 4, "---", "--:", "--:"])
    for contest in contests:
        print_lines(time_contest(contest, n_rounds))


def print_memory(contests: Mapping[int, Contest], files: tuple[Path, Path]) -> None:
    """Measure and print the table of memory."""
    print(
        "\npeak growth of memory as a multiple of the parameters: resident, anonymous "
        f"(no mapped file), as planned. Goal: resident at most {GOAL}\n"
    )
    names = ["done", "model", "how", "parameters, MiB", "resident", "anonymous"]
    print_lines([*names, "planned", "goal"])
    print_lines([*["---"] * 3, *["--:"] * 4, "---"])
    for index, contest in contests.items():
        print_lines(*weigh_contest(contest, index, files))


def parse_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    names = [REPLAY, LAST, EMPTY, LOAD, READ]
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rows", nargs="+", choices=names, default=names)
    parser.add_argument("--models", nargs="+", choices=BUILDS, default=list(BUILDS))
    return parser.parse_args()


def main() -> None:
    """Print the tables, row by row as they are measured."""
    options = parse_arguments()
    now = datetime.now(UTC)
    print(
        f"{now:%Y-%m-%d}, torch {torch.__version__}, {os.cpu_count()} CPU cores; "
        f"{options.rounds} rounds, {options.rounds * N_QUICK} where it is quick"
    )
    with tempfile.TemporaryDirectory() as folder:
        files = (Path(folder, "tiny.safetensors"), Path(folder, "full.safetensors"))
        save_weights(files[0], TINY)
        save_weights(files[1], {})
        contests = list_contests(files[1], {})
        chosen = {
            index: contest
            for index, contest in enumerate(contests)
            if contest.name in options.rows and contest.model in options.models
        }
        print_times(chosen.values(), options.rounds)
        print_memory(chosen, files)


if __name__ == "__main__":
    main()
