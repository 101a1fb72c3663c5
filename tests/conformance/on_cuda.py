"""What a GPU does, beside what is recorded as on CUDA: for a machine that has one.

``python -m tests.conformance.on_cuda WHAT`` prints a line of JSON for each thing that
it tries, and why it differs. ``operators``: samples of torch's operator database, with
gradients. ``models``: architectures of transformers and of other libraries, a forward
and a training step. ``draws``: what is materialized on the GPU beside what is built
there. ``memory``, ``times``: the peak and the time of training steps. With
``--device cpu`` the first three run without a GPU.
"""

import argparse
import gc
import importlib
import importlib.util
import itertools
import json
import logging
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from math import prod
from typing import Any, Final

import torch
from torch.utils._pytree import tree_map_only

import meta_magic as mm
from tests.conformance import architectures
from tests.conformance.constructions import CONSTRUCTIONS
from tests.conformance.exactness import differences, read_tensors, seed
from tests.conformance.gpu_programs import (
    PROGRAMS,
    measure_peak,
    measure_seconds,
    train,
)
from tests.conformance.library_sweep import (
    LIBRARIES,
    LIMITS,
    MARK,
    cut,
    describe,
    list_recorded,
    run,
)
from tests.conformance.model_runs import Log, Made
from tests.conformance.operator_samples import (
    OPERATORS,
    differentiate,
    full_name,
    is_copied,
)
from tests.conformance.torch_modules import MODULES
from tests.conformance.torch_modules import make_build as make_torch_build

Found = tuple[str, str]
"""What was tried, and why it differs, or ""."""


def compare_runs(call: Callable[[], object], device: str) -> str:
    """Return in what the operators of a call, run for real and recorded, differ."""
    torch.manual_seed(0)
    with Log() as log:
        wanted = try_to(call)
    torch.manual_seed(0)
    with mm.record(as_device=device, limits=LIMITS) as trace:
        met = try_to(call)
    gc.collect()
    if wanted.partition(":")[0] != met.partition(":")[0]:
        return f"error: {met or 'none'}, not {wanted or 'none'}"
    real, recorded = log.made, list_recorded(trace)
    is_begun = all(any(is_mark(made) for made in run) for run in (real, recorded))
    return find_difference(cut(real), cut(recorded)) if is_begun else ""


def is_mark(made: Made) -> bool:
    """Whether an operator made the tensor before which a model is built."""
    return [shape for shape, _ in made.metadata] == [MARK]


def try_to(call: Callable[[], object]) -> str:
    """Make a call; return its error in a line, or ""."""
    try:
        call()
    except Exception as error:
        return describe(error)
    return ""


def find_difference(real: list[Made], recorded: list[Made]) -> str:
    """Return where operators, shapes, dtypes or strides differ first."""
    for number, (made, met) in enumerate(zip(real, recorded, strict=False)):
        for field, read in FIELDS.items():
            a, b = read(met), read(made)
            if a != b:
                before = real[number - 1].op
                return (
                    f"{field}: {made.op}, {number} of {len(real)} after {before}: "
                    f"{a}, not {b}; next is {real[number + 1 : number + 2]}"
                )
    if len(real) != len(recorded):
        longer = max(real, recorded, key=len)
        extra = longer[min(len(real), len(recorded))].op
        return f"count: {len(recorded)}, not {len(real)} operators; next is {extra}"
    return ""


def find_strides(made: Made) -> list[Any]:
    """Return the strides along more than one element."""
    return [
        strides
        and [s for n, s in zip(shape, strides, strict=True) if n > 1 and prod(shape)]
        for (shape, _), strides in zip(made.metadata, made.strides, strict=True)
    ]


FIELDS: Final[dict[str, Callable[[Made], Any]]] = {
    "op": lambda made: made.op,
    "metadata": lambda made: made.metadata,
    "strides": find_strides,
}


def run_operators(options: argparse.Namespace) -> Iterator[Found]:
    """Call each operator of the database on copies of samples on a device."""
    dtype, device = getattr(torch, options.dtype), options.device
    for op in choose(OPERATORS, options, full_name):
        if dtype not in op.dtypes:
            continue
        has_gradients = op.supports_autograd and dtype.is_floating_point
        samples = op.sample_inputs("cpu", dtype, requires_grad=has_gradients)
        for sample in itertools.islice(samples, options.limit):
            call = make_call(op, (sample.input, sample.args, sample.kwargs), device)
            yield full_name(op), compare_runs(call, device)


def make_call(op: Any, inputs: Any, device: str) -> Callable[[], None]:
    """Return a call of an operator on a sample that is moved to a device."""

    def move(tensor: torch.Tensor) -> torch.Tensor:
        moved = tensor.detach().to(device)
        if is_copied(tensor) and tensor.requires_grad:
            moved.requires_grad_()
        return moved

    def call() -> None:
        first, args, kwargs = tree_map_only(torch.Tensor, move, inputs)
        if "device" in kwargs:
            kwargs = {**kwargs, "device": device}
        torch.zeros(MARK, device=device)
        returned = op.op(first, *args, **kwargs)
        if op.supports_autograd:
            differentiate(returned)

    return call


def run_models(options: argparse.Namespace) -> Iterator[Found]:
    """Run models of libraries that are installed, and train them once."""
    device = options.device
    for library, file in LIBRARIES.items():
        if not importlib.util.find_spec(library):
            continue
        cases = importlib.import_module(f"tests.conformance.libraries.{file}")
        try:
            found = [*getattr(cases, f"list_{library}")()]
        except Exception as error:
            yield library, f"list: {describe(error)}"
            continue
        for case in choose(found, options, lambda case: case.name):
            call = at(device, run, case, str)
            yield f"{library} {case.name}", compare_runs(call, device)
    for name in choose([*architectures.ARCHITECTURES], options, str):
        try:
            model = architectures.make_build(name)().eval()
            inputs = architectures.find_inputs(model)
        except Exception:
            continue
        if inputs is None:
            continue
        call = at(device, train_architecture, name, set(inputs) - {"use_cache"})
        yield f"transformers {name}", compare_runs(call, device)


def train_architecture(name: str, inputs: set[str]) -> None:
    """Build an architecture, call it, and go back through it."""
    model = architectures.make_build(name)().eval()
    given = architectures.make_inputs(model, inputs, None)
    torch.zeros(MARK)
    returned = model(**{key: given[key] for key in inputs})
    differentiate([*returned.values()])


def at(device: str, function: Callable[..., object], *args: Any) -> Callable[[], None]:
    """Return a call of a function whose new tensors lie on a device."""

    def call() -> None:
        with torch.device(device):
            function(*args)

    return call


def run_draws(options: argparse.Namespace) -> Iterator[Found]:
    """Build modules on a device, and record and materialize them."""
    builds = {
        **CONSTRUCTIONS,
        **{f"torch {name}": make_torch_build(name) for name in MODULES},
        **{
            f"transformers {name}": partial(build_architecture, name)
            for name in architectures.ARCHITECTURES
            if architectures.is_known(name)
        },
    }
    for name in choose([*builds], options, str):
        yield name, compare_modules(builds[name], options.device)


def build_architecture(name: str) -> torch.nn.Module:
    """Build an architecture of transformers."""
    built: torch.nn.Module = architectures.make_build(name)()
    return built


def compare_modules(build: Callable[[], torch.nn.Module], device: str) -> str:
    """Return how a module materialized on a device differs from one built there."""
    kept: list[torch.nn.Module] = []

    def make() -> None:
        seed()
        kept.append(build())

    call = at(device, make)
    if try_to(call):
        return ""
    try:
        with mm.record(as_device=device):
            call()
        report = mm.materialize(kept[-1], device)
    except Exception as met:
        return f"error: {describe(met)}, not none"
    direct, module = (read_tensors(module) for module in kept)
    return "; ".join(differences(module, direct, report.uninitialized)[:3])


def run_memory(options: argparse.Namespace) -> Iterator[Found]:
    """Compare the peak of programs on a GPU with the estimate."""
    for name in choose([*PROGRAMS], options, str):
        with mm.record(as_device="cuda") as trace:
            train(name)
        gc.collect()
        major, _ = torch.cuda.get_device_capability()
        allocated = trace.memory.as_allocated(major=major)
        real = measure_peak(name)
        ratio = allocated.peak_nbytes / real
        yield name, f"{allocated.peak_nbytes:,} of {real:,} bytes, {ratio:.4f}"


def run_times(options: argparse.Namespace) -> Iterator[Found]:
    """Compare the time of a step on a GPU with the roofline's."""
    for name in choose([*PROGRAMS], options, str):
        with mm.record(as_device="cuda") as trace:
            train(name)
        work = trace.cost.roofline(options.gpu).by_phase
        phases = "forward", "backward", "optimizer"
        estimate = sum(work.get(phase, 0.0) for phase in phases) / 2
        real = measure_seconds(name)
        yield name, f"{estimate:.4f} of {real:.4f} s, {real / estimate:.2f}"


def choose(items: list[Any], options: argparse.Namespace, name: Any) -> list[Any]:
    """Return the part of a list that this process runs."""
    part, n_parts = map(int, options.part.split("/"))
    wanted = [i for i in items if not options.names or name(i) in options.names]
    return wanted[part::n_parts]


def main() -> None:
    """Print what was found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=RUNS)
    parser.add_argument("names", nargs="*", help="operators or models; all if none")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--limit", type=int, default=None, help="samples of each")
    parser.add_argument("--part", default="0/1", help="such as 2/8: the third of 8")
    parser.add_argument("--gpu", default="h100-sxm", help="of the table of devices")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.disable()
    for name, difference in RUNS[options.what](options):
        print(json.dumps([options.what, name, difference]), flush=True)


RUNS = {
    "operators": run_operators,
    "models": run_models,
    "draws": run_draws,
    "memory": run_memory,
    "times": run_times,
}

if __name__ == "__main__":
    main()
