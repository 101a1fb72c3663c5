"""How long a cell takes while it is recorded, beside plain meta and other tools.

``python -m tests.benchmarks.record`` prints a Markdown table. All tools run in one
process, in turn, so that what loads the machine loads each of them alike. With
``--memory`` another one: by how much the resident memory grows in a first run, each in
a process of its own.
"""

import argparse
import gc
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from multiprocessing import get_context
from pathlib import Path
from statistics import median

import torch

from tests.benchmarks.models import CELLS, CONSTRUCTION, Cell, Workload, build_forward
from tests.benchmarks.peaks import read_status
from tests.benchmarks.recorders import PLAIN, TOOLS, CountingMode, Tool

MEASURED = (*CELLS, CONSTRUCTION)


class TimeLimitError(BaseException):
    """A run took too long; no ``Exception``, so that no tool catches it."""


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raise :class:`TimeLimitError` in the block when its time is up."""

    def stop(*_: object) -> None:
        raise TimeLimitError

    previous = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)


def root_cause(error: BaseException) -> BaseException:
    """Return the error that a tool has wrapped in its own."""
    while error.__cause__ is not None:
        error = error.__cause__
    return error


def run_once(tool: Tool, workload: Workload, limit: float) -> str:
    """Run a tool, and return what keeps it from being measured; "" if nothing does."""
    try:
        with time_limit(limit):
            tool.run(workload)
    except TimeLimitError:
        return f"> {limit:g} s"
    except Exception as error:
        return f"fails ({type(root_cause(error)).__name__})"
    return ""


def build_workload(cell: Cell, tool: Tool) -> Workload | str:
    """Return what a tool runs, built under what it needs; or why it runs nothing."""
    try:
        with tool.place():
            workload = cell.build()
    except Exception as error:
        return f"fails ({type(root_cause(error)).__name__})"
    return "" if tool.takes_model and not workload.is_forward else workload


def warm_up(tool: Tool, cell: Cell, limit: float) -> Workload | str:
    """Return what a tool ran once, unmeasured; or what to print in its place."""
    workload = build_workload(cell, tool)
    if isinstance(workload, str):
        return workload
    return run_once(tool, workload, limit) or workload


def measure(tool: Tool, workload: Workload) -> float:
    """Return the CPU seconds of one run; other processes do not count in them."""
    gc.collect()
    started = time.process_time()
    tool.run(workload)
    return time.process_time() - started


def measure_rounds(
    workloads: Sequence[tuple[Tool, Workload]], n_rounds: int
) -> dict[str, list[float]]:
    """Return the CPU seconds of each tool, one for each round.

    Each round begins with another tool, so that none always follows the same one.
    """
    seconds: dict[str, list[float]] = {tool.name: [] for tool, _ in workloads}
    for n in range(n_rounds):
        first = n % len(workloads)
        for tool, workload in (*workloads[first:], *workloads[:first]):
            seconds[tool.name].append(measure(tool, workload))
    return seconds


def count_operators(workload: Workload) -> int:
    """Return how many operators a dispatch mode sees."""
    with torch.device("meta"), CountingMode() as mode:
        workload.run()
    return mode.n_operators


def format_ratio(name: str, seconds: Mapping[str, Sequence[float]]) -> str:
    """Return the median over the rounds of a tool's time divided by plain meta's.

    Within a round, so that a machine that slows down slows both.
    """
    pairs = zip(seconds[name], seconds[PLAIN], strict=True)
    ratio = median(tool / plain for tool, plain in pairs)
    times_faster = f" ({1 / ratio:.1f}x)" if name.startswith("record") else ""
    return f"{ratio:.2f}{times_faster}"


def build_row(
    cell: Cell, tools: Sequence[Tool], n_rounds: int, limit: float
) -> list[str]:
    """Measure a cell and return its row of the table."""
    warm = {tool: warm_up(tool, cell, limit) for tool in tools}
    able = [(tool, w) for tool, w in warm.items() if isinstance(w, Workload)]
    seconds = measure_rounds(able, n_rounds)
    texts = {tool.name: text for tool, text in warm.items() if isinstance(text, str)}
    texts |= {name: format_ratio(name, seconds) for name in seconds}
    texts[PLAIN] = f"{1000 * median(seconds[PLAIN]):.1f}"
    n_operators = count_operators(able[0][1])
    return [cell.name, f"{n_operators:,}", *(texts[tool.name] for tool in tools)]


def build_small() -> Workload:
    """One Linear: what a tool imports at its first run is no part of a cell's."""
    return build_forward(torch.nn.Linear(4, 3), torch.zeros(2, 4))


def weigh(n_cell: int, n_tool: int, limit: float) -> str:
    """Return by how many MiB the memory of this process grows in a first run (Linux).

    Args:
        n_cell: Which of ``MEASURED``.
        n_tool: Which of ``TOOLS``.
        limit: Seconds that it may take.
    """
    tool = TOOLS[n_tool]
    warm_up(tool, Cell(name="small", build=build_small), limit)
    workload = build_workload(MEASURED[n_cell], tool)
    if isinstance(workload, str):
        return workload
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # forgets VmHWM
    before = read_status("VmRSS")
    failure = run_once(tool, workload, limit)
    return failure or f"{(read_status('VmHWM') - before) / 2**20:.1f}"


def build_weights(cell: Cell, tools: Sequence[Tool], limit: float) -> list[str]:
    """Weigh a cell and return its row of the table, a process for each tool."""
    texts = []
    for tool in tools:
        with get_context("spawn").Pool(1) as pool:
            given = MEASURED.index(cell), TOOLS.index(tool), limit
            texts.append(pool.apply(weigh, given))
    return [cell.name, *texts]


def format_line(texts: Sequence[str]) -> str:
    """Return one line of a Markdown table."""
    return f"| {' | '.join(texts)} |"


def print_head(names: Sequence[str]) -> None:
    """Print the first two lines of a table."""
    print(format_line(names))
    print(format_line(["---", *["--:"] * (len(names) - 1)]))


def parse_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    cells = [cell.name for cell in MEASURED]
    tools = [tool.name for tool in TOOLS]
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--limit", type=float, default=60.0, help="seconds for a run")
    parser.add_argument("--memory", action="store_true", help="instead of time")
    parser.add_argument("--cells", nargs="+", choices=cells, default=cells)
    parser.add_argument("--tools", nargs="+", choices=tools, default=tools)
    return parser.parse_args()


def main() -> None:
    """Print the table, row by row as it is measured."""
    options = parse_arguments()
    tools = [tool for tool in TOOLS if tool.name in {PLAIN, *options.tools}]
    cells = [cell for cell in MEASURED if cell.name in options.cells]
    if options.memory:
        print(f"torch {torch.__version__}; MiB that a first run adds to the process\n")
        print_head(["cell", *(tool.name for tool in tools)])
        for cell in cells:
            print(format_line(build_weights(cell, tools, options.limit)), flush=True)
        return
    print(
        f"torch {torch.__version__}; CPU time as a multiple of plain meta, for record "
        f"also how many times faster than it; median of {options.rounds} rounds\n"
    )
    names = (f"{PLAIN}, ms" if tool.name == PLAIN else tool.name for tool in tools)
    print_head(["cell", "operators", *names])
    for cell in cells:
        row = build_row(cell, tools, options.rounds, options.limit)
        print(format_line(row), flush=True)


if __name__ == "__main__":
    main()
