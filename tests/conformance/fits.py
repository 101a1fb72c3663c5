"""What ``Trace.fit`` says of ten training steps, beside recordings of each size.

    python -m tests.conformance.fits [MODEL ...]

For each model and size: the peaks that are interpolated at sizes that were not
recorded, the largest size that fits beside bisection with a recording a step, and
whether the peak there is that of a recording.
"""

import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from time import perf_counter
from typing import Final

from meta_magic import record
from meta_magic.cost.device_table import find_device
from meta_magic.cost.memory_timeline import take_sample
from meta_magic.trials.fit import fit_trace
from tests.conformance.fit_programs import PROGRAMS, Program, Step

DEVICE: Final = "a100-sxm"


def peak_with(step: Step, sizes: Mapping[str, int], name: str, size: int) -> int:
    """Return the peak of a recording where one size is another."""
    with record(as_device="cuda") as trace:
        step(**{**sizes, name: size})
    return take_sample(trace).peak_nbytes


def bisect(peak_at: Callable[[int], int], tried: Sequence[int]) -> int:
    """Return the largest of the sizes tried that fits, recording at each step."""
    room, low, high = find_device(DEVICE).nbytes, 0, len(tried)
    while low < high:
        middle = (low + high) // 2
        if peak_at(tried[middle]) <= room:
            low = middle + 1
        else:
            high = middle
    return tried[low - 1] if low else 0


def compare(model: str, program: Program) -> None:
    """Print a row for each size of a program."""
    sizes = {"batch": 8, "length": program.length}
    batch, length = sizes.values()
    with record(as_device="cuda") as trace:
        program.step(batch, length)
    for name, (asked, tried) in program.sizes.items():
        peak_at = partial(peak_with, program.step, sizes, name)
        started = perf_counter()
        fit = fit_trace(trace, DEVICE, {name: tried}).sizes[name]
        seconds = perf_counter() - started
        exact = "programs differ"
        if fit.interpolation is not None:
            interpolated = fit.interpolation.peak_nbytes
            wrong = [str(n) for n in asked if interpolated(n) != peak_at(n)]
            exact = f"{len(asked) - len(wrong)} of {len(asked)}"
            exact += f", not {', '.join(wrong)}" if wrong else ""
        answer = fit.largest or fit.least
        is_same = "yes" if fit.peak_nbytes(answer) == peak_at(answer) else "no"
        print(
            f"| {model} | {name} | {exact} | {fit.largest} | {is_same} "
            f"| {bisect(peak_at, tried)} | {seconds:.1f} | {len(trace):,} |",
            flush=True,
        )


def main() -> None:
    """Print the table, or the rows of models that are named."""
    print("| model | size | interpolated | largest | peak | bisected | s | calls |")
    print("|---|---|--:|--:|--:|--:|--:|--:|")
    for model in sys.argv[1:] or PROGRAMS:
        compare(model, PROGRAMS[model])


if __name__ == "__main__":
    main()
