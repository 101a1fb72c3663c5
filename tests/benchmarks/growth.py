"""Whether a recording of a million operators stays as quick and small as it began.

``python -m tests.benchmarks.growth`` prints what it measured, for operators in a loop
and for operators that modules call, and what it takes to ask such a recording;
``--cells 300`` what each of so many cells of one kernel takes.
"""

import argparse
import gc
import pickle
import time
import tracemalloc
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from itertools import pairwise
from pathlib import Path
from statistics import median
from types import MappingProxyType
from typing import Final

import pandas as pd
import torch
from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import capture_output
from torch import nn

import meta_magic as mm
from meta_magic.view.payload import build_payload, pack

N_TENTHS = 10
N_TRACED = 100_000
"""Operators that tracemalloc watches: it makes each several times slower."""

CELL: Final = """%%meta
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Dropout())
optimizer = torch.optim.Adam(model.parameters())
for step in range(4):
    optimizer.zero_grad()
    model(torch.randn({rows}, 8)).sum().backward()
    optimizer.step()
"""
"""A cell of one kernel; its sizes repeat after ``N_SIZES`` cells."""

N_SIZES: Final = 10
N_COMPARED: Final = 30
"""Cells whose median is shown, of the first ones and of the last ones."""

QUESTIONS: Final[Mapping[str, Callable[[mm.Trace], object]]] = MappingProxyType(
    {
        "print(trace), at first": str,
        "print(trace)": str,
        "trace.cost.flops": lambda trace: trace.cost.flops,
        "trace.memory.live_nbytes": lambda trace: trace.memory.live_nbytes,
        "1,000 of trace.ops": lambda trace: [
            trace.ops[len(trace) * i // 1000] for i in range(1000)
        ],
        "payload": build_payload,
        "payload, packed": pack,
        "trace.cost.to_pandas()": lambda trace: trace.cost.to_pandas(),
        "trace.memory.to_pandas()": lambda trace: trace.memory.to_pandas(),
        "trace.to_pandas()": lambda trace: trace.to_pandas(),
    }
)
"""What a long recording is asked, in this order: later ones find what others kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Body:
    """What a loop repeats.

    Attributes:
        name: How it is called, also on the command line.
        n_operators: Operators of one repetition.
        build: Makes the function that runs one repetition.
    """

    name: str
    n_operators: int
    build: Callable[[], Callable[[], object]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Growth:
    """What one recording took.

    Attributes:
        trace: The recording.
        seconds: CPU time of each tenth of its loop; other processes do not count.
        finish_seconds: CPU time from the end of the loop to the finished trace.
        nbytes_rss: Growth of the resident memory from before to after.
    """

    trace: mm.Trace
    seconds: tuple[float, ...]
    finish_seconds: float
    nbytes_rss: int


def build_loose() -> Callable[[], object]:
    """Return ten small operators: kernels, views, a write, and a factory."""
    x = torch.zeros(8, 16)

    def run() -> object:
        y = x + 1
        flat = y.view(-1)
        doubled = flat.mul(2)
        square = doubled.view(8, 16)
        turned = square.t()
        product = square @ turned
        product.add_(1)
        total = product.relu().sum(0)
        return total + torch.empty(8)

    return run


def build_modules() -> Callable[[], object]:
    """Return a call of three layers: two ``addmm`` with their ``t``, and a ``relu``."""
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 16))
    model.requires_grad_(requires_grad=False)
    x = torch.zeros(8, 16)
    return lambda: model(x)


BODIES = (
    Body(name="loose", n_operators=11, build=build_loose),
    Body(name="modules", n_operators=5, build=build_modules),
)


def read_rss() -> int:
    """Return the bytes of memory that this process has resident (Linux)."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * 4096


def run_tenths(body: Body, n_operators: int) -> Iterator[float]:
    """Run a body until it made its operators; yield the CPU time at each tenth."""
    run = body.build()
    n_runs = n_operators // body.n_operators // N_TENTHS
    yield time.process_time()
    for _ in range(N_TENTHS):
        for _ in range(n_runs):
            run()
        yield time.process_time()


def measure_growth(body: Body, n_operators: int) -> Growth:
    """Record a body's operators.

    After a short recording that is not measured: in a fresh process the first kernel,
    recorded or not, imports what torch's meta kernels need, which takes a second.
    """
    with mm.record():
        tuple(run_tenths(body, body.n_operators * N_TENTHS))
    gc.collect()
    nbytes = read_rss()
    with mm.record() as trace:
        times = tuple(run_tenths(body, n_operators))
    finish_seconds = time.process_time() - times[-1]
    gc.collect()
    return Growth(
        trace=trace,
        seconds=tuple(b - a for a, b in pairwise(times)),
        finish_seconds=finish_seconds,
        nbytes_rss=read_rss() - nbytes,
    )


def count_column_bytes(trace: mm.Trace) -> dict[str, int]:
    """Return the bytes of each column of the program, by its name."""
    program = trace.program
    values = {field.name: getattr(program, field.name) for field in fields(program)}
    return {
        name: len(value) for name, value in values.items() if isinstance(value, bytes)
    }


def measure_traced(body: Body) -> tuple[int, int]:
    """Return the bytes that Python holds for a trace, and held at most while recording.

    For ``N_TRACED`` operators, whatever the signature cache keeps counted in.
    """
    gc.collect()
    tracemalloc.start()
    try:
        with mm.record() as trace:
            tuple(run_tenths(body, N_TRACED))
        gc.collect()
        held, peak = tracemalloc.get_traced_memory()
        n = len(trace)
    finally:
        tracemalloc.stop()
    return held // n, peak // n


def measure_question(ask: Callable[[mm.Trace], object], trace: mm.Trace) -> float:
    """Return the CPU time of a question, its answer thrown away afterwards."""
    start = time.process_time()
    answer = ask(trace)
    seconds = time.process_time() - start
    del answer
    return seconds


def print_answers(trace: mm.Trace) -> None:
    """Ask a recording everything, and print how long each answer took."""
    pd.DataFrame({"index": [0]})  # its import, which the first would pay for
    print("  CPU seconds to answer")
    for name, ask in QUESTIONS.items():
        print(f"    {name:<25} {measure_question(ask, trace):7.3f}")


def print_cells(n_cells: int) -> None:
    """Run so many cells in one kernel; print the first ones beside the last ones."""
    shell = InteractiveShell()
    shell.run_cell("%load_ext meta_magic\nimport torch")
    seconds, nbytes = [], []
    for number in range(n_cells):
        cell = CELL.format(rows=number % N_SIZES + 2)
        start = time.process_time()
        with capture_output():
            shell.run_cell(cell, store_history=True).raise_error()
        seconds.append(time.process_time() - start)
        gc.collect()
        nbytes.append(read_rss())
    print(f"\n{n_cells} cells in one kernel")
    first, last = median(seconds[1 : N_COMPARED + 1]), median(seconds[-N_COMPARED:])
    print(f"  CPU milliseconds: {1e3 * first:.1f} at first, {1e3 * last:.1f} at last")
    grown = (nbytes[-1] - nbytes[N_COMPARED]) / (n_cells - N_COMPARED - 1)
    print(f"  resident bytes for each more: {grown:,.0f}")


def print_growth(body: Body, n_operators: int) -> None:
    """Measure one body and print what was found."""
    growth = measure_growth(body, n_operators)
    n = len(growth.trace)
    columns = count_column_bytes(growth.trace)
    ratio = growth.seconds[-1] / growth.seconds[0]
    n_calls = len(growth.trace.module_calls)
    print(f"\n{body.name}: {n:,} operators, {n_calls:,} module calls")
    print("  CPU seconds of tenths:", *(f"{s:.3f}" for s in growth.seconds))
    print(f"  last tenth / first:    {ratio:.2f}")
    print(f"  CPU microseconds each: {1e6 * sum(growth.seconds) / n:.1f}")
    print(f"  CPU seconds to finish: {growth.finish_seconds:.3f}")
    print("  bytes per operator")
    for name, nbytes in columns.items():
        print(f"    {name:<20} {nbytes / n:7.1f}")
    print(f"    {'all columns':<20} {sum(columns.values()) / n:7.1f}")
    print(f"    {'pickled':<20} {len(pickle.dumps(growth.trace)) / n:7.1f}")
    print(f"    {'resident':<20} {growth.nbytes_rss / n:7.1f}")
    print_answers(growth.trace)
    del growth
    held, peak = measure_traced(body)
    print(f"    {'tracemalloc':<20} {held:7} (peak {peak}), {N_TRACED:,} operators")


def main() -> None:
    """Record each body and print its growth."""
    parser = argparse.ArgumentParser(description=__doc__)
    names = [body.name for body in BODIES]
    parser.add_argument("--operators", type=int, default=1_000_000)
    parser.add_argument("--bodies", nargs="+", choices=names, default=names)
    parser.add_argument("--cells", type=int, help="measure so many cells instead")
    options = parser.parse_args()
    if options.cells:
        print_cells(options.cells)
        return
    for body in BODIES:
        if body.name in options.bodies:
            print_growth(body, options.operators)


if __name__ == "__main__":
    main()
