"""The most memory that a way to a real model takes; each in a fresh process (Linux)."""

import gc
import threading
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from tests.benchmarks.contests import TINY, list_contests

SAMPLING_SECONDS = 0.001


@dataclass(frozen=True, slots=True, kw_only=True)
class Peak:
    """Memory of one run of a way, in bytes.

    Attributes:
        nbytes: Size of the model's parameters.
        resident: Most growth of the resident memory, pages of mapped files counted in.
        anonymous: Most growth of what is not a file's, sampled each millisecond.
        planned: What the report says; None without a report.
    """

    nbytes: int
    resident: int
    anonymous: int
    planned: int | None


def read_status(field: str) -> int:
    """Return a number of bytes that the kernel knows of this process."""
    text = Path("/proc/self/status").read_text(encoding="ascii")
    line = next(line for line in text.splitlines() if line.startswith(f"{field}:"))
    return int(line.split()[1]) * 1024


def watch(field: str, ended: threading.Event, values: list[int]) -> None:
    """Read a number of bytes again and again."""
    while not ended.wait(SAMPLING_SECONDS):
        values.append(read_status(field))


def measure_peak(index: int, way: int, files: tuple[Path, Path]) -> Peak:
    """Measure one way of one contest; call it in a fresh process.

    After a tiny model, so that the code of torch that it takes is in memory.
    """
    warm_up = list_contests(files[0], TINY)[index].ways[way]
    warm_up.run(warm_up.prepare())
    measured = list_contests(files[1], {})[index].ways[way]
    torch.manual_seed(0)
    prepared = measured.prepare()
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # forgets VmHWM
    before, values, ended = (
        read_status("VmRSS"),
        [read_status("RssAnon")],
        threading.Event(),
    )
    watcher = threading.Thread(target=watch, args=("RssAnon", ended, values))
    watcher.start()
    result = measured.run(prepared)
    ended.set()
    watcher.join()
    values.append(read_status("RssAnon"))
    model = result if isinstance(result, nn.Module) else prepared
    return Peak(
        nbytes=sum(parameter.nbytes for parameter in model.parameters()),
        resident=read_status("VmHWM") - before,
        anonymous=max(values) - values[0],
        planned=getattr(result, "peak_nbytes", None),
    )
