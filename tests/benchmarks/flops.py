"""FLOPs of one forward beside other tools, each divided by a count on paper.

``python -m tests.benchmarks.flops`` prints a Markdown table. Of the others (torchinfo,
fvcore, calflops, ptflops, deepspeed) it has a column for each that is installed; those
that count multiply-adds are doubled.
"""

import argparse
import contextlib
import io
import logging
import os
import warnings
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from importlib.util import find_spec
from types import MappingProxyType

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

import meta_magic as mm
from tests.benchmarks.flop_models import MODELS, FlopModel

Counter = Callable[[nn.Module, Tensor], float]
DOUBLED = 2
"""FLOPs of a multiply-add."""


def count_by_torchinfo(model: nn.Module, x: Tensor) -> float:
    """Count by modules, on a real run."""
    from torchinfo import summary

    return DOUBLED * float(summary(model, input_data=x, verbose=0).total_mult_adds)


def count_by_fvcore(model: nn.Module, x: Tensor) -> float:
    """Count by the graph of ``torch.jit.trace``."""
    from fvcore.nn import FlopCountAnalysis

    analysis = FlopCountAnalysis(model, x)
    return DOUBLED * float(analysis.unsupported_ops_warnings(enabled=False).total())


def count_by_calflops(model: nn.Module, x: Tensor) -> float:
    """Count by functions of torch, replaced for the while."""
    from calflops import calculate_flops

    settings = {"print_results": False, "output_as_string": False}
    return float(calculate_flops(model, args=[x], **settings)[0])


def count_by_ptflops(model: nn.Module, x: Tensor) -> float:
    """Count by operators, or by modules where that fails."""
    from ptflops import get_model_complexity_info

    found = get_model_complexity_info(
        model,
        tuple(x.shape[1:]),
        as_strings=False,
        print_per_layer_stat=False,
        input_constructor=lambda _: {"x": x} if x.dtype == torch.long else x,
    )
    return DOUBLED * float(found[0])


def count_by_deepspeed(model: nn.Module, x: Tensor) -> float:
    """Count by functions of torch, replaced for the while."""
    os.environ["DS_ACCELERATOR"] = "cpu"
    from deepspeed.profiling.flops_profiler import get_model_profile

    settings = {"print_profile": False, "detailed": False, "as_string": False}
    return float(get_model_profile(model, args=[x], warm_up=0, **settings)[0])


def count_by_torch(model: nn.Module, x: Tensor) -> float:
    """Count by operators, on a real run."""
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(x)
    return float(counter.get_total_flops())


PEERS: Mapping[str, Counter] = MappingProxyType(
    {
        "torchinfo": count_by_torchinfo,
        "fvcore": count_by_fvcore,
        "calflops": count_by_calflops,
        "ptflops": count_by_ptflops,
        "deepspeed": count_by_deepspeed,
    }
)


def count_ours(model: FlopModel) -> float:
    """Count on meta, as the CPU would run it; the build is not in the forward phase."""
    with mm.record(as_device="cpu") as trace:
        module, x = model.build()
        with torch.no_grad():
            module(x)
    unknown = ", ".join(u.op for u in trace.cost.unknown)
    if unknown:
        print(f"no formula in {model.name}: {unknown}")
    return float(trace.cost.flops)


def build_and(count: Counter, model: FlopModel) -> float:
    """Return what a tool counts of a model that is built for it."""
    return count(*model.build())


def run_quietly(call: Callable[[], float]) -> float | str:
    """Return what a tool says, or the name of its error; what it prints is lost."""
    torch.manual_seed(0)
    sink = io.StringIO()
    try:
        with contextlib.redirect_stdout(sink), contextlib.redirect_stderr(sink):
            return call()
    except Exception as error:
        return type(error).__name__


def format_ratio(counted: float | str, wanted: float) -> str:
    """Return a count as a part of the right one, or the error."""
    return counted if isinstance(counted, str) else f"{counted / wanted:.4f}"


def print_table(models: list[FlopModel]) -> None:
    """Print a row for each model."""
    tools = {"FlopCounterMode": count_by_torch}
    tools |= {name: count for name, count in PEERS.items() if find_spec(name)}
    print("| model | on paper | ours |" + "".join(f" {name} |" for name in tools))
    print("| --- |" + " --: |" * (len(tools) + 2))
    for model in models:
        counts = [count_ours(model)]
        counts += [run_quietly(partial(build_and, c, model)) for c in tools.values()]
        cells = "".join(f" {format_ratio(c, model.flops)} |" for c in counts)
        print(f"| {model.name} | {model.flops:,} |{cells}", flush=True)


def read_names(description: str | None, known: Iterable[str]) -> list[str]:
    """Return the models that the command line names, all if none, and silence tools."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("names", nargs="*", help="models; all if none is named")
    names = parser.parse_args().names
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    return [name for name in known if not names or name in names]


if __name__ == "__main__":
    chosen = read_names(__doc__, [model.name for model in MODELS])
    print_table([model for model in MODELS if model.name in chosen])
