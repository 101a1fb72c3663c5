"""How many of transformers' architectures run one forward where, at tiny sizes.

``python -m tests.conformance.model_sweep`` prints the README's table: every one that
builds and runs on the CPU, under ``record()``, on plain meta and in FakeTensorMode.
"""

import argparse
import contextlib
import datetime as dt
import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import meta_magic as mm
from tests.conformance import architectures

Ways = dict[str, Callable[[], AbstractContextManager[Any]]]

WAYS: Ways = {
    "record": mm.record,
    "plain meta": lambda: torch.device("meta"),
    "FakeTensorMode": lambda: FakeTensorMode(allow_non_fake_inputs=True),
}
FORK = get_context("fork")
DTYPES = (torch.float32, torch.bfloat16)


def run(
    name: str,
    dtype: torch.dtype,
    way: Callable[[], AbstractContextManager[Any]],
    names: tuple[str, ...],
    side: int | None,
) -> None:
    """Build an architecture, and run it on the named inputs."""
    with way():
        torch.manual_seed(0)
        torch.set_default_dtype(dtype)
        try:
            model = architectures.make_build(name)().eval()
        finally:
            torch.set_default_dtype(torch.float32)
        main = set(names) - {"use_cache"}
        inputs = architectures.make_inputs(model, main, side)
        model(**{key: as_dtype(inputs[key], dtype) for key in names})


def as_dtype(value: Any, dtype: torch.dtype) -> Any:
    """Return an input in the dtype of its model."""
    is_float = isinstance(value, torch.Tensor) and value.is_floating_point()
    return value.to(dtype) if is_float else value


def find_call(
    name: str, dtype: torch.dtype
) -> tuple[tuple[str, ...], int | None] | None:
    """Return names of inputs, and the size of images, on which the CPU runs."""
    try:
        model = architectures.make_build(name)().eval()
    except Exception:
        return None
    inputs = architectures.find_inputs(model)
    if inputs is None:
        return None
    for side in (None, 64):
        try:
            run(name, dtype, nullcontext, tuple(inputs), side)
        except Exception:
            continue
        return tuple(inputs), side
    return None


def try_ways(name: str, dtype: torch.dtype, answers: Connection) -> None:
    """Send for each way why an architecture does not run so, "" if it does."""
    call = find_call(name, dtype)
    if call is None:
        return
    for title, way in WAYS.items():
        reason = ""
        try:
            run(name, dtype, way, *call)
        except Exception as error:
            reason = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        answers.send((title, reason))


def sweep(names: list[str], dtype: torch.dtype) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield for each architecture that runs on the CPU why it does not elsewhere.

    Each in a process of its own: on plain meta, memory that is not there is written.
    """
    for name in filter(architectures.is_known, names):
        here, there = FORK.Pipe(duplex=False)
        process = FORK.Process(target=try_ways, args=(name, dtype, there))
        process.start()
        there.close()
        found: dict[str, str] = {}
        with contextlib.suppress(EOFError):
            while True:
                found.update([here.recv()])
        process.join()
        if found:
            crashed = dict.fromkeys(WAYS, "the process died")
            yield name, {way: why for way, why in (crashed | found).items() if why}


def main() -> None:
    """Print the table, and why ``record()`` failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", default=list(architectures.ARCHITECTURES))
    names = parser.parse_args().names
    warnings.simplefilter("ignore")
    logging.disable()
    torch.set_num_threads(1)
    day = dt.datetime.now(tz=dt.UTC).date()
    print(f"{day}, torch {torch.__version__}\n")
    print(f"| dtype | run on the CPU | {' | '.join(WAYS)} |\n|---|--:|--:|--:|--:|")
    reasons = []
    for dtype in DTYPES:
        found = list(sweep(names, dtype))
        counts = [sum(way not in failures for _, failures in found) for way in WAYS]
        shares = [f"{n} ({100 * n / max(1, len(found)):.1f} %)" for n in counts]
        print(f"| {dtype} | {len(found)} | {' | '.join(shares)} |", flush=True)
        reasons += [
            f"- {dtype} {name}: {failures['record']}"
            for name, failures in found
            if "record" in failures
        ]
    print("\nWhere `record()` fails:\n", *reasons, sep="\n")


if __name__ == "__main__":
    main()
