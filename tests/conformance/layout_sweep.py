"""Whether operators of torch's database lay out results as on the CPU, whatever inputs.

``python -m tests.conformance.layout_sweep`` runs the samples of every operator with
inputs in rows, transposed, reversed, expanded, with the channels last and behind an
offset, and where gradients are wanted or inference mode is on; it prints how many
samples give tensors of other sizes, strides, offsets, storages or versions than on
the CPU, and the operators that do.
"""

import argparse
import itertools
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from types import MappingProxyType
from typing import Any, Final

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

import meta_magic as mm
from tests.conformance.operator_samples import OPERATORS, full_name, is_copied
from tests.conformance.operator_sweep import lift_inputs, run_on, strides_of, types_of


def reorder(tensor: Tensor, *dims: int) -> Tensor:
    """Return a copy of a tensor whose dimensions lie in memory in another order."""
    back = [dims.index(dim) for dim in range(tensor.ndim)]
    return tensor.permute(dims).contiguous().permute(back)


def transpose(tensor: Tensor) -> Tensor:
    """Swap the last two dimensions in memory."""
    if tensor.ndim < 2:
        return tensor
    *leading, a, b = range(tensor.ndim)
    return reorder(tensor, *leading, b, a)


def reverse(tensor: Tensor) -> Tensor:
    """Reverse all dimensions in memory."""
    return reorder(tensor, *reversed(range(tensor.ndim)))


def put_channels_last(tensor: Tensor) -> Tensor:
    """Put the second dimension last in memory."""
    if tensor.ndim < 3:
        return tensor
    first, channels, *others = range(tensor.ndim)
    return reorder(tensor, first, *others, channels)


def expand(tensor: Tensor) -> Tensor:
    """Repeat the first entry along the first dimension."""
    is_repeated = tensor.ndim and tensor.shape[0]
    return tensor[:1].clone().expand(tensor.shape) if is_repeated else tensor


def shift(tensor: Tensor) -> Tensor:
    """Put a tensor behind other elements, and have some between its own."""
    if not tensor.ndim:
        return torch.stack([tensor, tensor, tensor])[1]
    wide = tensor.repeat_interleave(2, -1) if tensor.shape[-1] else tensor
    return torch.cat([wide[:1], wide])[1:, ..., ::2] if tensor.ndim > 1 else wide[::2]


LAYOUTS: Final[Mapping[str, Callable[[Tensor], Tensor]]] = MappingProxyType(
    {
        "in rows": lambda tensor: tensor,
        "transposed": transpose,
        "reversed": reverse,
        "channels last": put_channels_last,
        "expanded": expand,
        "offset": shift,
    }
)
MODES: Final[Mapping[str, Any]] = MappingProxyType(
    {"plain": nullcontext, "gradients": nullcontext, "inference": torch.inference_mode}
)
FIELDS: Final = ("error", "types", "strides", "offsets", "nbytes", "versions")


def lay_out(inputs: Any, layout: str, mode: str) -> Any:
    """Return a copy of a sample's inputs, laid out otherwise."""

    def make(tensor: Tensor) -> Tensor:
        if not is_copied(tensor):
            return tensor
        made = LAYOUTS[layout](tensor.detach().clone())
        is_wanted = mode == "gradients" and tensor.requires_grad
        return made.requires_grad_() if is_wanted else made

    return tree_map_only(torch.Tensor, make, inputs)


def describe(op: Any, inputs: Any, mode: str) -> dict[str, Any]:
    """Return what is seen of what an operator returns."""
    try:
        with MODES[mode]():
            made = run_on("cpu", op, inputs)
            plain = [t for t in made if t.layout is torch.strided and not t.is_nested]
            return {
                "error": "",
                "types": types_of(made),
                "strides": strides_of(made),
                "offsets": [t.storage_offset() for t in plain],
                "nbytes": [t.untyped_storage().nbytes() for t in plain],
                "versions": [None if t.is_inference() else t._version for t in plain],
            }
    except Exception as error:
        first = (str(error).strip().splitlines() or [""])[0]
        return {"error": f"{type(error).__name__}: {first}"}


def find_differences(op: Any, sample: Any, layout: str, mode: str) -> list[str]:
    """Return in what a recorded call differs from the CPU's; ``[""]`` if in nothing.

    Empty if the sample has no such layout.
    """
    given = sample.input, sample.args, sample.kwargs
    inputs = lay_out(given, layout, mode)
    if layout != "in rows" and strides_of_all(inputs) == strides_of_all(given):
        return []
    wanted = describe(op, inputs, mode)
    with mm.record(as_device="cpu"):
        met = describe(op, lift_inputs(lay_out(given, layout, mode)), mode)
    for field in FIELDS:
        a, b = met.get(field), wanted.get(field)
        if a != b:
            return [f"{field}: {a}, not {b}"[:300]]
    return [""]


def strides_of_all(inputs: Any) -> list[Any]:
    """Return stride and offset of all tensors."""
    found: list[Any] = []
    tree_map_only(
        torch.Tensor,
        lambda t: found.append((t.stride(), t.storage_offset()) if is_copied(t) else 0),
        inputs,
    )
    return found


def run_samples(options: argparse.Namespace) -> Iterator[tuple[str, ...]]:
    """Yield operator, layout, mode and what differs of each sample."""
    dtype = getattr(torch, options.dtype)
    for op in OPERATORS[options.start : options.stop]:
        name = full_name(op)
        if dtype not in op.dtypes or name not in (options.names or [name]):
            continue
        print(name, file=sys.stderr)
        for mode in options.modes:
            has_gradients = mode == "gradients" and op.supports_autograd
            wanted = {"requires_grad": has_gradients and dtype.is_floating_point}
            for layout in options.layouts:
                samples = op.sample_inputs("cpu", dtype, **wanted)
                for sample in itertools.islice(samples, options.limit):
                    for text in find_differences(op, sample, layout, mode):
                        yield name, layout, mode, text


def count_outcomes(found: Iterator[tuple[str, ...]]) -> None:
    """Print how many samples differ, and in what."""
    n_run: Counter[tuple[str, ...]] = Counter()
    n_other: Counter[tuple[str, ...]] = Counter()
    texts: dict[tuple[str, ...], list[str]] = {}
    for name, layout, mode, text in found:
        n_run[layout, mode] += 1
        if text:
            field = text.partition(":")[0]
            n_other[layout, mode, field] += 1
            texts.setdefault((field, name), []).append(f"{layout}, {mode}: {text}")
    print(f"| inputs | mode | run | {' | '.join(FIELDS)} |\n|---|---|{'--:|' * 7}")
    for (layout, mode), n in n_run.items():
        counts = [str(n_other[layout, mode, field]) for field in FIELDS]
        print(f"| {layout} | {mode} | {n:,} | {' | '.join(counts)} |")
    for (field, name), met in sorted(texts.items()):
        print(f"- {field}, {name} ({len(met)}): {met[0]}")


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="operators; all if none")
    parser.add_argument("--limit", type=int, default=None, help="samples of each")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--layouts", nargs="*", default=[*LAYOUTS], choices=LAYOUTS)
    parser.add_argument("--modes", nargs="*", default=[*MODES], choices=MODES)
    parser.add_argument("--start", type=int, default=None, help="first operator")
    parser.add_argument(
        "--stop", type=int, default=None, help="operator to stop before"
    )
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    count_outcomes(run_samples(options))


if __name__ == "__main__":
    main()
