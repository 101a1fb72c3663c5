"""How long a cell takes while it is recorded, beside plain meta and other tools.

``python -m tests.benchmarks.record`` prints a Markdown table. All tools run in one
process, in turn, so that what loads the machine loads each of them alike.
"""

import argparse
import gc
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from statistics import median
from typing import Any

import torch
from torch.utils._debug_mode import DebugMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

import meta_magic as mm
from tests.benchmarks.models import CELLS, Cell, Workload

PLAIN = "plain"


class TimeLimitError(BaseException):
    """A run took too long; no ``Exception``, so that no tool catches it."""


class Nothing:
    """What the do-nothing mode does; a mixin, so that torch does not import dynamo."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        return func(*args, **(kwargs or {}))


class NothingMode(Nothing, TorchDispatchMode):
    """The least that any dispatch mode costs."""


class Counting:
    """What the counting mode does; a mixin for the same reason."""

    n_operators = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        self.n_operators += 1
        return func(*args, **(kwargs or {}))


class CountingMode(Counting, TorchDispatchMode):
    """Counts the operators that torch runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """One column of the table.

    Attributes:
        name: How the column is called, also on the command line.
        run: Runs a workload once under the tool.
        takes_model: Whether the tool calls the model itself, so that it can be
            compared on forwards alone.
    """

    name: str
    run: Callable[[Workload], object]
    takes_model: bool = False


def run_plain(workload: Workload) -> None:
    """Run without any tool."""
    with torch.device("meta"):
        workload.run()


def run_dispatch(workload: Workload) -> None:
    """Run under a dispatch mode that does nothing."""
    with torch.device("meta"), NothingMode():
        workload.run()


def run_record(workload: Workload) -> None:
    """Record, with the signatures that earlier recordings left."""
    with mm.record():
        workload.run()


def forget_signatures() -> None:
    """Begin anew, as the first cell of a session, which knows no signature yet."""
    import_module("meta_magic.session.caches").shared_cache_by_device.clear()


def run_record_cold(workload: Workload) -> None:
    """Record as the first cell of a session does."""
    forget_signatures()
    with mm.record():
        workload.run()


def run_record_uncached(workload: Workload) -> None:
    """Record, and run every kernel."""
    with mm.record(cache=False):
        workload.run()


def run_debug_mode(workload: Workload) -> None:
    """Run under torch's own recorder, with its defaults: operators alone."""
    with torch.device("meta"), DebugMode():
        workload.run()


def run_flop_counter(workload: Workload) -> None:
    """Run under torch's FLOP counter."""
    with torch.device("meta"), FlopCounterMode(display=False):
        workload.run()


def run_torchinfo(workload: Workload) -> None:
    """Let torchinfo call the model and make its summary, and print nothing."""
    import torchinfo

    with torch.device("meta"):
        torchinfo.summary(
            workload.model, input_data=workload.inputs, device="meta", verbose=0
        )


def run_torchview(workload: Workload) -> None:
    """Let torchview call the model and write its graph as DOT, and lay nothing out.

    With every module open: at its default depth it fails for language models.
    """
    import torchview

    with torch.device("meta"):
        torchview.draw_graph(
            workload.model,
            input_data=workload.inputs,
            device="meta",
            depth=float("inf"),
        )


TOOLS = (
    Tool(name=PLAIN, run=run_plain),
    Tool(name="nothing", run=run_dispatch),
    Tool(name="record", run=run_record),
    Tool(name="record-cold", run=run_record_cold),
    Tool(name="record-uncached", run=run_record_uncached),
    Tool(name="debugmode", run=run_debug_mode),
    Tool(name="flopcounter", run=run_flop_counter),
    Tool(name="torchinfo", run=run_torchinfo, takes_model=True),
    Tool(name="torchview", run=run_torchview, takes_model=True),
)


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


def warm_up(tool: Tool, workload: Workload, limit: float) -> str | None:
    """Run a tool once, unmeasured, and say what keeps it from being measured.

    Returns:
        What to print in its place; None if it can be measured.
    """
    if tool.takes_model and not workload.is_forward:
        return ""
    try:
        with time_limit(limit):
            tool.run(workload)
    except TimeLimitError:
        return f"> {limit:g} s"
    except Exception as error:
        return f"fails ({type(root_cause(error)).__name__})"
    return None


def measure(tool: Tool, workload: Workload) -> float:
    """Return the CPU seconds of one run; other processes do not count in them."""
    gc.collect()
    started = time.process_time()
    tool.run(workload)
    return time.process_time() - started


def measure_rounds(
    tools: Sequence[Tool], workload: Workload, n_rounds: int
) -> dict[str, list[float]]:
    """Return the CPU seconds of each tool, one for each round.

    Each round begins with another tool, so that none always follows the same one.
    """
    seconds: dict[str, list[float]] = {tool.name: [] for tool in tools}
    for n in range(n_rounds):
        first = n % len(tools)
        for tool in (*tools[first:], *tools[:first]):
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
    with torch.device("meta"):
        workload = cell.build()
    n_operators = count_operators(workload)
    texts = {tool.name: warm_up(tool, workload, limit) for tool in tools}
    able = [tool for tool in tools if texts[tool.name] is None]
    seconds = measure_rounds(able, workload, n_rounds)
    for tool in able:
        texts[tool.name] = format_ratio(tool.name, seconds)
    texts[PLAIN] = f"{1000 * median(seconds[PLAIN]):.1f}"
    return [cell.name, f"{n_operators:,}", *(text or "" for text in texts.values())]


def format_line(texts: Sequence[str]) -> str:
    """Return one line of a Markdown table."""
    return f"| {' | '.join(texts)} |"


def parse_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    cells = [cell.name for cell in CELLS]
    tools = [tool.name for tool in TOOLS]
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--limit", type=float, default=60.0, help="seconds for a run")
    parser.add_argument("--cells", nargs="+", choices=cells, default=cells)
    parser.add_argument("--tools", nargs="+", choices=tools, default=tools)
    return parser.parse_args()


def main() -> None:
    """Print the table, row by row as it is measured."""
    options = parse_arguments()
    tools = [tool for tool in TOOLS if tool.name in {PLAIN, *options.tools}]
    print(
        f"torch {torch.__version__}; CPU time as a multiple of plain meta, for record "
        f"also how many times faster than it; median of {options.rounds} rounds\n"
    )
    names = (f"{PLAIN}, ms" if tool.name == PLAIN else tool.name for tool in tools)
    print(format_line(["cell", "operators", *names]))
    print(format_line(["---", *["--:"] * (len(tools) + 1)]))
    for cell in CELLS:
        if cell.name in options.cells:
            row = build_row(cell, tools, options.rounds, options.limit)
            print(format_line(row), flush=True)


if __name__ == "__main__":
    main()
