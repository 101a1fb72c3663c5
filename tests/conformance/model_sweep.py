"""How many of transformers' architectures run one forward where, at tiny sizes.

``python -m tests.conformance.model_sweep`` prints the README's table: of every one that
builds and runs on the CPU, whether it runs under ``record()``, on plain meta and in
FakeTensorMode, and whether what was recorded is what the CPU does.
"""

import argparse
import contextlib
import datetime as dt
import importlib
import logging
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import meta_magic as mm
from tests.conformance import architectures
from tests.conformance.model_runs import (
    Call,
    Made,
    find_call,
    in_child,
    list_real,
    list_recorded,
    run,
)

WAYS: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "record": mm.record,
    "plain meta": lambda: torch.device("meta"),
    "FakeTensorMode": lambda: FakeTensorMode(allow_non_fake_inputs=True),
}
SAME, STRIDES = "same operators, shapes and dtypes", "same strides, too"
COLUMNS = (*WAYS, SAME, STRIDES)
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def check(call: Call) -> dict[str, str]:
    """Return for each column why an architecture does not count there, or ""."""
    found = {title: in_child(run, call, way)[1] for title, way in WAYS.items()}
    real, _ = in_child(list_real, call)
    recorded, reason = in_child(list_recorded, call)
    if recorded is None:
        return found | {SAME: reason, STRIDES: reason}
    found[SAME] = find_difference(real, recorded)
    strides = [
        made.op
        for made, met in zip(real, recorded, strict=False)
        if made.strides != met.strides
    ]
    found[STRIDES] = found[SAME] or ", ".join(Counter(strides))
    return found


def find_difference(real: Sequence[Made], recorded: Sequence[Made]) -> str:
    """Return where the operators, their shapes or their dtypes differ first."""
    for number, (made, met) in enumerate(zip(real, recorded, strict=False)):
        if made.op != met.op:
            return f"operator {number} is {made.op}, not {met.op}"
        if made.metadata != met.metadata:
            return f"{made.op} returns {made.metadata}, not {met.metadata}"
    if len(real) != len(recorded):
        return f"{len(real)} operators, not {len(recorded)}"
    return ""


def warm_up() -> None:
    """Have torch import what it imports when first asked, before there are children."""
    for way in WAYS.values():
        with way():
            torch.nn.functional.gelu(torch.ones(2)).sum()
    importlib.import_module("torch._dynamo")


def sweep(names: list[str], dtype: torch.dtype) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield for each architecture that runs on the CPU what :func:`check` found."""
    warm_up()
    for name in filter(architectures.is_known, names):
        with contextlib.suppress(Exception):  # import it once, and not in each child
            architectures.make_build(name)
        call, _ = in_child(find_call, name, dtype)
        if call is not None:
            yield name, check(call)


def main() -> None:
    """Print the table, and what does not count."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", default=list(architectures.ARCHITECTURES))
    parser.add_argument("--dtype", choices=DTYPES, action="append")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.disable()
    torch.set_num_threads(1)
    day = dt.datetime.now(tz=dt.UTC).date()
    print(f"{day}, torch {torch.__version__}\n")
    print(f"| dtype | run on the CPU | {' | '.join(COLUMNS)} |")
    print("|---|--:" + len(COLUMNS) * "|--:" + "|")
    for dtype in options.dtype or DTYPES:
        found = []
        for name, failures in sweep(options.names, DTYPES[dtype]):
            found.append(failures)
            for title in ("record", SAME, STRIDES):
                if failures[title]:
                    print(
                        f"- {dtype} {name}, {title}: {failures[title]}",
                        file=sys.stderr,
                        flush=True,
                    )
        counts = [sum(not failures[title] for failures in found) for title in COLUMNS]
        shares = [f"{n} ({100 * n / max(1, len(found)):.1f} %)" for n in counts]
        print(f"| {dtype} | {len(found)} | {' | '.join(shares)} |", flush=True)


if __name__ == "__main__":
    main()
