"""Whether operators of torch's database write into ``out=`` as on the CPU.

``python -m tests.conformance.out_sweep`` runs the samples of every operator that takes
``out=`` with tensors to write into that are empty, right, too large, strided, offset
and of another dtype, beside the CPU; it prints how many differ in an error, in what is
returned, in sizes, strides, bytes, values or the draws after them, and which do.
"""

import argparse
import itertools
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, Final

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

import meta_magic as mm
from tests.conformance.layout_sweep import lay_out
from tests.conformance.operator_samples import OPERATORS, full_name, is_copied
from tests.conformance.operator_sweep import lift_inputs

FIELDS: Final = ("error", "returned", "geometry", "values", "draws", "versions")

UNINITIALIZED: Final = frozenset({"empty", "empty_permuted", "empty_strided"})
"""What leaves in ``out=`` whatever lies there."""

WIDER: Final = MappingProxyType(
    {torch.float32: torch.float64, torch.int64: torch.float32, torch.bool: torch.int64}
)


def make(shape: Any, dtype: torch.dtype) -> Tensor:
    """Return a tensor of ones."""
    return torch.ones(shape, dtype=dtype)


def make_strided(like: Tensor) -> Tensor:
    """Return every second element of a transposed tensor."""
    if not like.ndim:
        return make(3, like.dtype)[1]
    sizes = [*like.shape]
    sizes[-1] *= 2
    return make(sizes[::-1], like.dtype).permute(*reversed(range(like.ndim)))[..., ::2]


OUTS: Final[Mapping[str, Callable[[Tensor], Tensor]]] = MappingProxyType(
    {
        "empty": lambda like: make(0, like.dtype),
        "right": lambda like: make(like.shape, like.dtype),
        "too large": lambda like: make([n + 1 for n in like.shape] or 2, like.dtype),
        "strided": make_strided,
        "viewed": lambda like: make([3, *like.shape], like.dtype)[1],
        "of another dtype": lambda like: make(
            like.shape, WIDER.get(like.dtype, like.dtype)
        ),
    }
)
"""What is written into, by what is expected."""


def samples_of(op: Any, dtype: torch.dtype, limit: int | None) -> Iterator[Any]:
    """Yield samples of an operator, each with the tensors that it returns."""
    for sample in itertools.islice(op.sample_inputs("cpu", dtype), limit):
        given = sample.input, sample.args, dict(sample.kwargs)
        for name in ("device", "layout", "requires_grad", "pin_memory"):
            given[2].pop(name, None)  # out= says so
        if not all(map(is_copied, tree_leaves(given))):
            continue
        torch.manual_seed(0)
        try:
            expected = op.op(given[0], *given[1], **given[2])
        except Exception:
            continue
        wanted = [*expected] if isinstance(expected, (list, tuple)) else [expected]
        if all(isinstance(t, Tensor) and is_copied(t) for t in wanted):
            yield given, wanted, isinstance(expected, Tensor)


def run(op: Any, inputs: Any, outs: list[Tensor], *, is_one: bool) -> dict[str, Any]:
    """Run an operator and return what is seen."""
    torch.manual_seed(0)
    first, args, kwargs = inputs
    bases = [t if t._base is None else t._base for t in outs]
    try:
        out = outs[0] if is_one else tuple(outs)
        returned = op.op(first, *args, **kwargs, out=out)
    except Exception as error:
        lines = str(error).strip().splitlines() or [""]
        return {"error": f"{type(error).__name__}: {lines[0]}"}
    many = [returned] if isinstance(returned, Tensor) else [*(returned or ())]
    drawn = torch.rand(1)
    return {
        "error": "",
        "returned": [[one is out for out in outs] for one in many],
        "geometry": [describe(t) for t in (*outs, *bases)],
        "values": lambda: [repr(t.tolist()) for t in (*many, *outs, *bases)],
        "draws": drawn.item,
        "versions": [t._version for t in (*outs, *bases)],
    }


def describe(tensor: Tensor) -> tuple[object, ...]:
    """Return where the elements of a tensor lie."""
    nbytes = tensor.untyped_storage().nbytes()
    place = tuple(tensor.shape), tensor.stride(), tensor.storage_offset(), nbytes
    return *place, tensor.dtype


def find_difference(op: Any, sample: Any, kind: str) -> str:
    """Return in what a recorded call differs from the CPU's; "" if in nothing."""
    given, wanted, is_one = sample
    outs = [OUTS[kind](tensor) for tensor in wanted]
    real = run(op, lay_out(given, "in rows", "plain"), outs, is_one=is_one)
    with mm.record(as_device="cpu"):
        inputs = lift_inputs(lay_out(given, "in rows", "plain"))
        met = run(op, inputs, [OUTS[kind](t) for t in wanted], is_one=is_one)
        for field in FIELDS:
            is_raw = op.name in UNINITIALIZED and kind == "empty"
            if field == "values" and is_raw:
                continue
            a, b = met.get(field), real.get(field)
            try:
                a, b = (each() if callable(each) else each for each in (a, b))
            except Exception as error:
                a = f"{type(error).__name__}: {error}"
            if a != b:
                return f"{field}: {a}, not {b}"
    return ""


def run_all(options: argparse.Namespace) -> Iterator[tuple[str, str, str]]:
    """Yield operator, what is written into and what differs, of each sample."""
    dtype = getattr(torch, options.dtype)
    for op in OPERATORS[options.start : options.stop]:
        name = full_name(op)
        is_asked = op.supports_out and name in (options.names or [name])
        if dtype not in op.dtypes or not is_asked:
            continue
        print(name, file=sys.stderr)
        for sample in samples_of(op, dtype, options.limit):
            for kind in options.outs:
                yield name, kind, find_difference(op, sample, kind)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="operators; all if none")
    parser.add_argument("--limit", type=int, default=None, help="samples of each")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--outs", nargs="*", default=[*OUTS], choices=OUTS)
    parser.add_argument("--start", type=int, default=None, help="first operator")
    parser.add_argument(
        "--stop", type=int, default=None, help="operator to stop before"
    )
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    n_run, n_other, texts = Counter[str](), Counter[tuple[str, str]](), {}
    for name, kind, text in run_all(options):
        n_run[kind] += 1
        if text:
            field = text.partition(":")[0]
            n_other[kind, field] += 1
            texts.setdefault((field, name), []).append(f"{kind}: {text}")
    print(f"| out= | run | {' | '.join(FIELDS)} |\n|---|{'--:|' * 7}")
    for kind, n in n_run.items():
        counts = [str(n_other[kind, field]) for field in FIELDS]
        print(f"| {kind} | {n:,} | {' | '.join(counts)} |")
    for (field, name), met in sorted(texts.items()):
        print(f"- {field}, {name} ({len(met)}): {met[0][:300]}")


if __name__ == "__main__":
    main()
