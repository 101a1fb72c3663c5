"""Peak memory of one training step beside other tools, each divided by a real run's.

``python -m tests.benchmarks.memory`` prints a Markdown table. Forward, backward and a
step of Adam in float32 on the CPU, the model being built before; a tracker of the real
run's storages says what is right. torchinfo and accelerate have a column where they are
installed, torch's MemTracker is part of torch. Of the tools that count FLOPs (fvcore,
calflops, ptflops, DeepSpeed's profiler, FlopCounterMode) none has a peak.
"""

from collections.abc import Callable, Mapping
from functools import partial
from importlib.util import find_spec
from multiprocessing import get_context
from types import MappingProxyType

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed._tools.mem_tracker import MemTracker
from torch.utils.checkpoint import checkpoint

import meta_magic as mm
from tests.benchmarks.flop_models import MODELS, build_encoder
from tests.benchmarks.flops import format_ratio, read_names, run_quietly
from tests.conformance.storage_tracker import StorageTracker

Build = Callable[[], tuple[nn.Module, Tensor]]
Measure = Callable[[Build], float]


class Checkpointed(nn.Module):
    """Layers that are computed again in the backward pass."""

    def __init__(self, layers: nn.ModuleList) -> None:
        super().__init__()
        self.layers = layers

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=False)
        return x


def build_large(*, is_checkpointed: bool) -> tuple[nn.Module, Tensor]:
    """Torch's own encoder with so much data that activations are most of it."""
    encoder, _ = build_encoder(trains=True)
    model = Checkpointed(encoder.layers) if is_checkpointed else encoder
    return model, torch.randn(32, 128, 256)


SMALL = {"nn.TransformerEncoder", "the same, eval"}
"""Models that are too small for their activations to matter, or do not train."""

BUILDS: Mapping[str, Build] = MappingProxyType(
    {model.name: model.build for model in MODELS if model.name not in SMALL}
    | {
        "nn.TransformerEncoder": partial(build_large, is_checkpointed=False),
        "the same, checkpointed": partial(build_large, is_checkpointed=True),
    }
)
"""How models are made: those of the table of FLOPs, but an encoder that trains."""


def train(model: nn.Module, x: Tensor) -> torch.optim.Optimizer:
    """Take one step of Adam, and return what keeps its states."""
    optimizer = torch.optim.Adam(model.parameters())
    model(x).square().mean().backward()
    optimizer.step()
    return optimizer


def build_and_train(build: Build) -> torch.optim.Optimizer:
    """Build a model, and take one step."""
    model, x = build()
    return train(model.train(), x)


def measure_real(build: Build) -> float:
    """Follow the storages of a real run."""
    with StorageTracker() as tracker:
        _kept = build_and_train(build)
    return float(tracker.peak_nbytes)


def measure_ours(build: Build) -> float:
    """Record on meta."""
    with mm.record(as_device="cpu") as trace:
        _kept = build_and_train(build)
    return float(trace.memory.peak_nbytes)


def measure_by_torch(build: Build) -> float:
    """Run fake tensors under torch's tracker, which is told of what is there before."""
    with FakeTensorMode():
        model, x = build()
        model.train()
        optimizer = torch.optim.Adam(model.parameters())
        tracker = MemTracker()
        tracker.track_external(model, optimizer, x)
        with tracker:
            model(x).square().mean().backward()
            optimizer.step()
    (snapshot,) = tracker.get_tracker_snapshot("peak").values()
    return float(snapshot["Total"])


def measure_by_torchinfo(build: Build) -> float:
    """Take its "estimated total size": parameters, and twice what modules return."""
    from torchinfo import summary

    model, x = build()
    found = summary(model.train(), input_data=x, verbose=0)
    return float(found.total_input + found.total_output_bytes + found.total_param_bytes)


def measure_by_accelerate(build: Build) -> float:
    """Take what ``accelerate estimate-memory`` prints for Adam: of parameters alone."""
    from accelerate.commands.estimate import estimate_training_usage
    from accelerate.utils import calculate_maximum_sizes

    nbytes, _ = calculate_maximum_sizes(build()[0])
    return float(max(estimate_training_usage(nbytes, "float32").values()))


REAL = "real"
MEASURES: Mapping[str, Measure] = MappingProxyType(
    {
        REAL: measure_real,
        "ours": measure_ours,
        "MemTracker": measure_by_torch,
        "torchinfo": measure_by_torchinfo,
        "accelerate": measure_by_accelerate,
    }
)
NEEDED = frozenset({"torchinfo", "accelerate"})
"""Tools that may not be installed."""


def measure(tool: str, name: str) -> float | str:
    """Return what a tool says of a model, or the name of its error."""
    return run_quietly(lambda: MEASURES[tool](BUILDS[name]))


def format_part(said: float | str, real: float) -> str:
    """Return what a tool says as a part of what is right, or that it is the same."""
    return "same" if said == real else format_ratio(said, real)


def print_table(names: list[str]) -> None:
    """Print a row for each model; each number is of a process of its own."""
    tools = [t for t in MEASURES if t != REAL and (t not in NEEDED or find_spec(t))]
    print("| one step of Adam | real peak, bytes |" + "".join(f" {t} |" for t in tools))
    print("| --- |" + " --: |" * (len(tools) + 1))
    with get_context("fork").Pool(1, maxtasksperchild=1) as pool:
        for name in names:
            calls = [(tool, name) for tool in (REAL, *tools)]
            real, *said = pool.starmap(measure, calls, chunksize=1)
            cells = "".join(f" {format_part(n, float(real))} |" for n in said)
            print(f"| {name} | {real:,.0f} |{cells}", flush=True)


if __name__ == "__main__":
    torch.set_num_threads(1)
    print_table(read_names(__doc__, BUILDS))
