"""How many samples of torch's operator database run under ``record()``.

``python -m tests.conformance.operator_sweep`` prints the README's table: of the samples
that run on the CPU, how many run under ``record()``, with inputs whose values the
recording knows, on plain meta and in FakeTensorMode; and of those under ``record()``,
how many return tensors of the CPU's shapes and dtypes, and of its strides, too.
"""

import argparse
import copy
import datetime as dt
import itertools
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._pytree import tree_leaves, tree_map_only

import meta_magic as mm
from tests.conformance.operator_samples import OPERATORS, full_name, is_copied

DTYPES = (torch.float32, torch.bfloat16, torch.int64, torch.complex64)

Ways = dict[str, tuple[Callable[[], AbstractContextManager[Any]], str]]

WAYS: Ways = {
    "record": (lambda: mm.record(as_device="cpu"), "meta"),
    "plain meta": (lambda: torch.device("meta"), "meta"),
    "FakeTensorMode": (lambda: FakeTensorMode(allow_non_fake_inputs=True), "cpu"),
}
"""What to run a sample in, and the device that it then names."""


class Outcome(NamedTuple):
    """What became of a sample under ``record()`` or elsewhere.

    Attributes:
        error: Why it did not run; "" if it did.
        other_type: Its shapes and dtypes where they are not the CPU's, else "".
        other_strides: The same of its strides, where its shapes and dtypes are.
    """

    error: str = ""
    other_type: str = ""
    other_strides: str = ""


def lift(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor on meta, of the same strides, whose values are recorded."""
    if not is_copied(tensor):
        return tensor
    lifted = tensor.detach().to("meta")
    if geometry_of(lifted) != geometry_of(tensor) and not tensor.is_neg():
        n_elements = tensor.untyped_storage().nbytes() // tensor.itemsize
        whole = tensor.detach().as_strided((n_elements,), (1,), 0).to("meta")
        place = tensor.shape, tensor.stride(), tensor.storage_offset()
        lifted = whole.as_strided(*place)
    return lifted.requires_grad_(tensor.requires_grad)


def geometry_of(tensor: torch.Tensor) -> tuple[Any, ...]:
    """Return where the elements of a tensor lie."""
    nbytes = tensor.untyped_storage().nbytes()
    return tensor.stride(), tensor.storage_offset(), nbytes


def lift_inputs(inputs: Any) -> Any:
    """Return a sample with its tensors and devices on meta."""
    inputs = tree_map_only(torch.Tensor, lift, inputs)
    inputs = tree_map_only(torch.device, lambda _: torch.device("meta"), inputs)
    inputs[2].update({k: "meta" for k in inputs[2] if k == "device"})
    return inputs


def run_on(device: str, op: Any, inputs: Any) -> list[torch.Tensor]:
    """Return the tensors that an operator returns for a copy of a sample."""
    torch.manual_seed(0)
    first, args, kwargs = lift_inputs(inputs) if device == "meta" else inputs
    returned = op(first, *args, **kwargs)
    return [t for t in tree_leaves(returned) if isinstance(t, torch.Tensor)]


def types_of(tensors: list[torch.Tensor]) -> list[tuple[Any, ...]]:
    """Return shapes and dtypes."""
    return [(tuple(t.shape), t.dtype) for t in tensors]


def strides_of(tensors: list[torch.Tensor]) -> list[Any]:
    """Return strides where they matter, that is, along more than one element."""
    return [
        [s for n, s in zip(t.shape, t.stride(), strict=True) if n > 1 and t.numel()]
        if t.layout is torch.strided
        else t.layout
        for t in tensors
    ]


def compare(met: list[torch.Tensor], wanted: list[torch.Tensor]) -> Outcome:
    """Return in what tensors differ from the CPU's."""
    for describe in (types_of, strides_of):
        a, b = describe(met), describe(wanted)
        if a != b:
            text = f"{a}, not {b}"[:200]
            is_type = describe is types_of
            return Outcome(other_type=text) if is_type else Outcome(other_strides=text)
    return Outcome()


def run_sample(op: Any, inputs: Any, ways: list[str]) -> dict[str, Outcome]:
    """Return what became of a sample in each way; nothing if the CPU fails."""
    try:
        copies = [copy.deepcopy(inputs) for _ in ways]
        wanted = run_on("cpu", op, copy.deepcopy(inputs))
    except Exception:
        return {}
    outcomes = {}
    for title, copied in zip(ways, copies, strict=True):
        way, device = WAYS[title]
        try:
            with way() as mode:
                is_fake = isinstance(mode, FakeTensorMode)
                make = mode.from_tensor if is_fake else lambda t: t
                met = run_on(device, op, tree_map_only(torch.Tensor, make, copied))
            outcomes[title] = compare(met, wanted)
        except Exception as error:
            text = " ".join(f"{type(error).__name__}: {error}".split())
            outcomes[title] = Outcome(error=text[:200])
    return outcomes


def run_samples(
    dtype: torch.dtype, options: argparse.Namespace
) -> Iterator[tuple[str, dict[str, Outcome]]]:
    """Yield the name of the operator and the outcomes of each sample."""
    for op in OPERATORS:
        name = full_name(op)
        if dtype not in op.dtypes or name not in (options.names or [name]):
            continue
        print(dtype, name, file=sys.stderr)
        for sample in itertools.islice(op.sample_inputs("cpu", dtype), options.limit):
            inputs = sample.input, sample.args, sample.kwargs
            outcomes = run_sample(op, inputs, options.ways)
            if outcomes:
                yield name, outcomes


def format_row(
    dtype: torch.dtype, found: list[dict[str, Outcome]], ways: list[str]
) -> str:
    """Return the table's row of a dtype."""
    recorded = [outcomes["record"] for outcomes in found]
    n = max(1, len(found))
    counts = [sum(not outcomes[way].error for outcomes in found) for way in ways]
    counts.append(sum(not (o.error or o.other_type) for o in recorded))
    counts.append(recorded.count(Outcome()))
    shares = [f"{count:,} ({100 * count / n:.2f} %)" for count in counts]
    return f"| {dtype} | {len(found):,} | {' | '.join(shares)} |"


def main() -> None:
    """Print the table, and what differs under ``record()``."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="operators; all if none")
    parser.add_argument("--limit", type=int, default=None, help="samples of each")
    parser.add_argument(
        "--record-only", action="store_true", help="a third of the time"
    )
    dtypes = {str(dtype).removeprefix("torch."): dtype for dtype in DTYPES}
    parser.add_argument("--dtypes", nargs="*", default=dtypes, choices=dtypes)
    options = parser.parse_args()
    options.ways = ["record"] if options.record_only else list(WAYS)
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    day = dt.datetime.now(tz=dt.UTC).date()
    print(f"{day}, torch {torch.__version__}\n")
    titles = ("on the CPU", *options.ways, "same types", "and strides")
    print(f"| dtype | {' | '.join(titles)} |\n|---|{'--:|' * len(titles)}")
    reasons: Counter[tuple[str, ...]] = Counter()
    for dtype in map(dtypes.get, options.dtypes):
        found = list(run_samples(dtype, options))
        outcomes = [outcomes for _, outcomes in found]
        print(format_row(dtype, outcomes, options.ways), flush=True)
        reasons.update(
            (field, name, reason)
            for name, met in found
            for field, reason in met["record"]._asdict().items()
            if reason
        )
    for key in sorted(reasons):
        print("- {}, {} ({n}): {}".format(*key, n=reasons[key]))


if __name__ == "__main__":
    main()
