"""How many samples of torch's operator database run under ``record()``.

``python -m tests.conformance.operator_sweep`` prints the README's table: all samples
that run on the CPU, with inputs whose values the recording knows; and where the shape
or the dtype of an output differs from the CPU's.
"""

import argparse
import copy
import datetime as dt
import itertools
import warnings
from collections import Counter
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map_only

import meta_magic as mm
from tests.conformance.operator_samples import OPERATORS, full_name

DTYPES = (torch.float32, torch.bfloat16, torch.int64, torch.complex64)


def lift(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor on meta whose values the recording knows."""
    if tensor.layout is not torch.strided or tensor.is_nested or tensor.is_quantized:
        return tensor
    return tensor.detach().to("meta").requires_grad_(tensor.requires_grad)


def call(op: Any, inputs: Any, *, is_meta: bool) -> list[tuple[Any, ...]]:
    """Return shape and dtype of all that an operator returns for a sample."""
    if is_meta:
        inputs = tree_map_only(torch.Tensor, lift, inputs)
        inputs = tree_map_only(torch.device, lambda _: torch.device("meta"), inputs)
        inputs[2].update({k: "meta" for k in inputs[2] if k == "device"})
    first, args, kwargs = inputs
    returned = op(first, *args, **kwargs)
    return [
        (tuple(leaf.shape), leaf.dtype) if isinstance(leaf, torch.Tensor) else leaf
        for leaf in tree_leaves(returned)
    ]


def run_samples(op: Any, dtype: torch.dtype, limit: int | None) -> Iterator[str]:
    """Yield for each sample that the CPU runs: "" or why the recording did not."""
    samples = op.sample_inputs("cpu", dtype)
    for sample in itertools.islice(samples, limit):
        inputs = sample.input, sample.args, sample.kwargs
        try:
            real, lifted = copy.deepcopy(inputs), copy.deepcopy(inputs)
            torch.manual_seed(0)
            wanted = call(op, real, is_meta=False)
        except Exception:
            continue
        try:
            with mm.record():
                torch.manual_seed(0)
                met = call(op, lifted, is_meta=True)
        except Exception as error:
            yield " ".join(f"{type(error).__name__}: {error}".split())[:160]
        else:
            is_same = [m for m in met if isinstance(m, tuple)] == [
                w for w in wanted if isinstance(w, tuple)
            ]
            yield (
                "" if is_same else f"another shape or dtype: {met}, not {wanted}"[:160]
            )


def main() -> None:
    """Print the table, and what failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--limit", type=int, default=None, help="samples of each")
    limit = parser.parse_args().limit
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    day = dt.datetime.now(tz=dt.UTC).date()
    print(f"{day}, torch {torch.__version__}\n")
    print("| dtype | samples that the CPU runs | run | with its shapes and dtypes |")
    print("|---|--:|--:|--:|")
    reasons: Counter[tuple[str, str]] = Counter()
    for dtype in DTYPES:
        found = [
            (full_name(op), reason)
            for op in OPERATORS
            if dtype in op.dtypes
            for reason in run_samples(op, dtype, limit)
        ]
        n_differing = sum(reason.startswith("another") for _, reason in found)
        n_failed = sum(bool(reason) for _, reason in found) - n_differing
        n = len(found)
        shares = [
            f"{m:,} ({100 * m / n:.2f} %)"
            for m in (n - n_failed, n - n_failed - n_differing)
        ]
        print(f"| {dtype} | {n:,} | {' | '.join(shares)} |", flush=True)
        reasons.update((name, reason) for name, reason in found if reason)
    print("\nNot run, or otherwise:\n")
    for (name, reason), n_times in sorted(reasons.items()):
        print(f"- {name} ({n_times}): {reason}")


if __name__ == "__main__":
    main()
