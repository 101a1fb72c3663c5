"""How long a ResNet-50 takes to build: a page says 0.01 ms on meta, 15 ms on the CPU.

``python -m tests.benchmarks.claims`` prints a table; it needs torchvision. The page is
interviewbite.in/meta-device. CPU time, in one process, in turn; the first of each is
told apart, for there torch imports what it needs.
"""

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from statistics import median

import torch
from torch import nn

from meta_magic import record

ROUNDS = 15
WAYS: dict[str, Callable[[], AbstractContextManager[object]]] = {
    "on the CPU": nullcontext,
    "on meta": lambda: torch.device("meta"),
    "recorded": record,
    "recorded, without the cache": lambda: record(cache=False),
}


def measure(build: Callable[[], nn.Module], way: str) -> float:
    """Return the CPU milliseconds that building takes."""
    started = time.process_time()
    with WAYS[way]():
        model = build()
    took = (time.process_time() - started) * 1000
    assert sum(p.numel() for p in model.parameters()) == 25_557_032
    return took


def main() -> None:
    """Print the table."""
    from torchvision.models import resnet50

    torch.set_num_threads(1)
    taken = {way: [] for way in WAYS}
    for _ in range(ROUNDS + 1):
        for way, times in taken.items():
            times.append(measure(resnet50, way))
    print("| ResNet-50 | first, ms | after that, median ms | least |")
    print("|---|--:|--:|--:|")
    for way, (first, *others) in taken.items():
        print(f"| {way} | {first:.0f} | {median(others):.1f} | {min(others):.1f} |")


if __name__ == "__main__":
    main()
