"""Are pictures of operators true: which elements does torch itself read?

``python -m tests.conformance.pictures`` records samples of torch's operator database.
For each call with a picture, the report's JavaScript says which elements of the inputs
each element of the output reads. The call then runs on real tensors that count, and the
output has to be what torch makes of those elements alone. Prints a table.
"""

import argparse
import json
import subprocess
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from itertools import islice
from math import prod
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from meta_magic.session.record import record
from meta_magic.trace.calls import OpCall, TensorMetadata
from meta_magic.view.payload import build_payload
from tests.conformance.operator_samples import OPERATORS, calls_of

DUMP = Path(__file__).parents[1] / "js" / "reach_dump.mjs"
Read = list[list[list[int] | None]]
"""For each element of an output, and each input, the numbers of the elements read."""


def read_pictures(traces: Sequence[Any]) -> list[list[dict[str, Any]]]:
    """Return what the report says of the calls of traces, by node."""
    lines = "\n".join(json.dumps(build_payload(trace)) for trace in traces)
    done = subprocess.run(
        ["node", DUMP], input=lines, capture_output=True, text=True, check=True
    )
    return [json.loads(line) for line in done.stdout.splitlines()]


def find_operator(name: str) -> Any:
    """Return an operator by its name in traces."""
    namespace, packet, overload = name.split(".")
    return getattr(getattr(getattr(torch.ops, namespace), packet), overload)


def make_real(tensor: TensorMetadata, dtype: torch.dtype) -> Tensor:
    """Return a real tensor of a geometry, on a storage that counts from 0."""
    stride, offset = tensor.stride or (), tensor.storage_offset or 0
    span = offset + sum((n - 1) * s for n, s in zip(tensor.shape, stride, strict=True))
    counting = torch.arange(max(span, 0) + 1)
    if dtype == torch.bool:
        counting = counting % 2
    return counting.to(dtype).as_strided(tensor.shape, stride, offset)


class Real:
    """A recorded call on real tensors that count.

    Attributes:
        inputs: The real tensors, in the order of the call's inputs.
        result: The first output; ``results``: all.
    """

    def __init__(self, call: OpCall, kind: str) -> None:
        self.call, self.op = call, find_operator(call.op)
        self.is_exact = kind in {"product", "window", "attention", "line", "reduction"}
        self.made: dict[int, Tensor] = {}
        self.arguments = {name: self.build(value) for name, value in call.arguments}
        self.inputs = [*self.made.values()]
        if kind == "pick":
            self.choose_indices()

    def build(self, value: Any) -> Any:
        """Return an argument with real tensors in it."""
        if isinstance(value, TensorMetadata):
            dtype = value.dtype
            if self.is_exact and dtype.is_floating_point:
                dtype = torch.float64
            made = make_real(value, dtype)
            self.made[len(self.made)] = made
            return made
        if isinstance(value, tuple):
            return [self.build(one) for one in value]
        if isinstance(value, torch.device):
            return torch.device("cpu")
        if isinstance(value, torch.dtype) and self.is_exact and value.is_floating_point:
            return torch.float64
        return value

    def choose_indices(self) -> None:
        """Make indices such that each is within its dimension."""
        table, *indices = self.inputs
        dim = self.arguments.get("dim", 0)
        for n, index in enumerate(indices):
            places = self.arguments.get("indices")
            if isinstance(places, list):
                dim = [d for d, i in enumerate(places) if i is not None][n]
            index.remainder_(table.shape[dim] if table.ndim else 1)

    def run(self, changed: Mapping[str, Any] = MappingProxyType({})) -> Any:
        """Run the operator, with some arguments changed."""
        return self.op(**self.arguments | changed)


def first_of(result: Any) -> Tensor:
    """Return the first tensor of a result."""
    return result[0] if isinstance(result, (tuple, list)) else result


def take(tensor: Tensor, numbers: list[int] | None) -> Tensor:
    """Return elements by their numbers, row by row."""
    return tensor.flatten()[torch.tensor(numbers or [], dtype=torch.long)]


def rebuild_moved(real: Real, read: list[Read]) -> Iterator[tuple[Tensor, Tensor]]:
    """A view, a copy or a join: each element is the one that is read, or a fill."""
    results = real.run()
    results = results if isinstance(results, (tuple, list)) else [results]
    for result, reads in zip(results, read, strict=False):
        flat = result.flatten()
        single = [
            next((take(x, one[i]) for i, x in enumerate(real.inputs) if one[i]), None)
            for one in reads
        ]
        fill = torch.tensor([real.arguments.get("value", 0)]).to(flat.dtype)
        if real.op._opname == "as_strided":  # it may leave what its input holds
            is_inside = torch.isin(flat, real.inputs[0])
            flat = torch.where(is_inside, flat, fill)
        filled = [fill if one is None else one for one in single]
        found = torch.cat(filled) if filled else flat
        if real.op._opname in {"tril", "triu"}:
            found = torch.where(flat == 0, flat, found)
        yield flat, found


def rebuild_broadcast(real: Real, read: list[Read]) -> Iterator[tuple[Tensor, Tensor]]:
    """An operator of elements: the same of elements gathered beforehand."""
    gathered = iter([
        torch.cat([take(x, one[i]) for one in read[0]] or [x.flatten()[:0]])
        for i, x in enumerate(real.inputs)
    ])  # fmt: skip
    changed = {
        name: next(gathered) if isinstance(value, Tensor) else value
        for name, value in real.arguments.items()
    }
    copies = {
        n: v.clone() if isinstance(v, Tensor) else v for n, v in real.arguments.items()
    }
    yield first_of(real.run(copies)).flatten(), first_of(real.run(changed)).flatten()


def rebuild_product(real: Real, read: list[Read]) -> Iterator[tuple[Tensor, Tensor]]:
    """A sum of products of the elements that are read, and what is added."""
    added, factors = real.inputs[:-2], range(len(real.inputs))[-2:]
    found = [
        torch.stack([take(real.inputs[i], one[i]) for i in factors]).prod(0).sum()
        + sum(take(x, one[i]).sum() for i, x in enumerate(added))
        for one in read[0]
    ]
    plain = {n: v for n, v in real.arguments.items() if isinstance(v, Tensor)}
    result = real.op(*plain.values()).flatten()
    yield result, torch.stack(found) if found else result


def rebuild_reduction(real: Real, read: list[Read]) -> Iterator[tuple[Tensor, Tensor]]:
    """The same operator of the elements that are read, as one line."""
    given = real.inputs[0]
    result = first_of(real.run())
    has_dim = any(a.name == "dim" for a in real.op._schema.arguments)
    found = []
    for one in read[0]:
        is_list = isinstance(real.arguments.get("dim"), list)
        dim = (
            {"dim": [0] if is_list else 0}
            if has_dim and "dim" in real.arguments
            else {}
        )
        found.append(
            first_of(real.run({"self": take(given, one[0])} | dim)).reshape(())
        )
    yield result.flatten(), torch.stack(found) if found else result.flatten()


def rebuild_line(real: Real, read: list[Read]) -> Iterator[tuple[Tensor, Tensor]]:
    """The same operator of the line alone, at the element's own place."""
    result = first_of(real.run())
    given = real.inputs[0]
    if real.op._opname == "native_layer_norm":
        shape = real.arguments["normalized_shape"]
        scale = dict.fromkeys(("weight", "bias"))
        flat = first_of(real.run(scale)).flatten()
        size = prod(shape)
        found = [
            first_of(real.run(scale | {"input": take(given, one[0]).reshape(shape)}))
            .flatten()[n % size]
            for n, one in enumerate(read[0])
        ]  # fmt: skip
        yield flat, torch.stack(found) if found else flat
        return
    dim = real.arguments.get("dim", -1)
    where = (
        [
            index[dim]
            for index in torch.cartesian_prod(*map(torch.arange, result.shape)).reshape(
                -1, result.ndim
            )
        ]
        if result.ndim
        else [0]
    )
    found = []
    for at, one in zip(where, read[0], strict=True):
        line = first_of(real.run({"self": take(given, one[0]), "dim": 0}))
        found.append(line.flatten()[int(at)])
    yield result.flatten(), torch.stack(found) if found else result.flatten()


def rebuild_window(real: Real, read: list[Read]) -> Iterator[tuple[Tensor, Tensor]]:
    """A sum, mean or maximum of the window; a convolution of ones sums it."""
    name, given = real.op._opname, real.inputs[0]
    windows = [take(given, one[0]) for one in read[0]]
    if name == "convolution":
        weight = torch.ones_like(real.inputs[1])
        result = first_of(real.run({"weight": weight, "bias": None}))
        found = [window.sum() for window in windows]
    elif "max" in name:
        result, found = first_of(real.run()), [window.max() for window in windows]
    else:
        inside = {} if "adaptive" in name else {"count_include_pad": False}
        if any(a.name == "divisor_override" for a in real.op._schema.arguments):
            inside["divisor_override"] = None
        result = first_of(real.run(inside))
        found = [window.mean() for window in windows]
    yield result.flatten(), torch.stack(found) if found else result.flatten()


def rebuild_pick(real: Real, read: list[Read]) -> Iterator[tuple[Tensor, Tensor]]:
    """Of the elements that are read, the one at the number in the index."""
    table, *indices = real.inputs
    result = first_of(real.run()).flatten()
    found = []
    for one in read[0]:
        line = take(table, one[0])
        numbers = [int(take(x, one[i + 1])[0]) for i, x in enumerate(indices)]
        places = real.arguments.get("indices")
        sizes = (
            [table.shape[d] for d, i in enumerate(places) if i is not None]
            if isinstance(places, list)
            else []
        )
        at = numbers[0]
        for number, size in list(zip(numbers, sizes, strict=False))[1:]:
            at = at * size + number
        found.append(line[at])
    yield result, torch.stack(found) if found else result


def rebuild_attention(real: Real, read: list[Read]) -> Iterator[tuple[Tensor, Tensor]]:
    """The softmax of a query's scores weighs the values that are read."""
    query, key, value, *masks = (
        x / x.numel() if x.is_floating_point() else x for x in real.inputs
    )
    changed = dict(zip(("query", "key", "value"), (query, key, value), strict=True))
    changed |= {"attn_mask": masks[0]} if masks else {}
    result = first_of(real.run(changed)).flatten()
    scale = real.arguments.get("scale") or query.shape[-1] ** -0.5
    found = []
    for one in read[0]:
        keys = take(key, one[1]).reshape(-1, key.shape[-1])
        scores = keys @ take(query, one[0]) * scale
        if masks:
            scores = scores + take(masks[0], one[3])
        found.append(scores.softmax(0) @ take(value, one[2]))
    yield result, torch.stack(found) if found else result


REBUILD: dict[str, Callable[[Real, list[Read]], Iterator[tuple[Tensor, Tensor]]]] = {
    "memory": rebuild_moved,
    "copy": rebuild_moved,
    "join": rebuild_moved,
    "broadcast": rebuild_broadcast,
    "product": rebuild_product,
    "reduction": rebuild_reduction,
    "line": rebuild_line,
    "window": rebuild_window,
    "pick": rebuild_pick,
    "attention": rebuild_attention,
}


def compare(call: OpCall, kind: str, read: list[Read]) -> str:
    """Return "equal", "differs", or why a call was not compared."""
    if kind not in REBUILD:
        return "no rule"
    if not read:
        return "large"
    try:
        real = Real(call, kind)
        pairs = [*REBUILD[kind](real, read)]
    except (RuntimeError, NotImplementedError, LookupError, TypeError) as error:
        return f"not run: {type(error).__name__}: {error}".split("\n")[0][:90]
    for result, found in pairs:
        if result.shape != found.shape:
            return "differs"
        # Vectors and single elements have kernels of their own, as of pow and atan2.
        near = 1e-9 if result.dtype == torch.float64 else 1e-5
        if not torch.allclose(result.double(), found.double(), near, equal_nan=True):
            return "differs"
    return "equal"


def compare_operator(
    operator: Any, n_samples: int
) -> Iterator[tuple[OpCall, str, str]]:
    """Yield each call of an operator's samples that has a picture, and the verdict."""
    traces = []
    for call in islice(calls_of(operator, n_samples), n_samples):
        with warnings.catch_warnings(), record(as_device="cpu", named="real") as trace:
            warnings.simplefilter("ignore")
            with suppress(Exception):  # a sample that is refused
                call()
        if len(trace.ops):
            traces.append(trace)
    for trace, calls in zip(traces, read_pictures(traces), strict=True):
        for drawn in calls:
            op = trace.ops[drawn["op"]]
            yield op, drawn["kind"], compare(op, drawn["kind"], drawn["read"])


def sweep(limit: int, per_operator: int) -> tuple[Counter[tuple[str, str]], list[str]]:
    """Return how many calls of each kind were equal, and those that were not."""
    counts: Counter[tuple[str, str]] = Counter()
    wrong: list[str] = []
    seen: set[Any] = set()
    for operator in OPERATORS:
        for op, kind, verdict in compare_operator(operator, per_operator):
            inputs = [(x.shape, x.stride) for x in op.inputs]
            key = (op.op, str(op.arguments), str(inputs))
            if key in seen:
                continue
            seen.add(key)
            counts[kind, verdict.split(":")[0]] += 1
            if verdict != "equal":
                wrong.append(f"{kind} {op} {verdict}")
        if limit and sum(n for (_, v), n in counts.items() if v == "equal") >= limit:
            break
    return counts, wrong


def main() -> None:
    """Compare, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--limit", type=int, default=0, help="stop after so many")
    parser.add_argument("--samples", type=int, default=12, help="of each operator")
    options = parser.parse_args()
    torch.manual_seed(0)
    counts, wrong = sweep(options.limit, options.samples)
    print("\n".join(wrong))
    verdicts = ["equal", "differs", "not run", "large", "no rule"]
    print(f"{datetime.now(UTC):%Y-%m-%d}, torch {torch.__version__}\n")
    print(f"| picture | {' | '.join(verdicts)} |\n|---|{'---:|' * len(verdicts)}")
    for kind in sorted({kind for kind, _ in counts}):
        counts.update({("all", v): counts[kind, v] for v in verdicts})
        print(f"| {kind} | {' | '.join(str(counts[kind, v]) for v in verdicts)} |")
    print(f"| all | {' | '.join(str(counts['all', v]) for v in verdicts)} |")


if __name__ == "__main__":
    main()
