"""Which tensors of usual models nothing wrote: ``trace.contents`` beside the CPU.

Each architecture is built on meta, allocated anew by ``to_empty`` and initialized:
those of transformers by ``_init_weights``, torch's modules by ``reset_parameters``. On
the CPU a pattern is written into the new memory first; what still has it afterwards was
not written. Run ``python -m tests.conformance.initializations [NAME ...]``.
"""

import sys
import warnings
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import torch
from torch import nn

import meta_magic
from tests.conformance import architectures, torch_modules

Build: TypeAlias = Callable[[], nn.Module]
Init: TypeAlias = Callable[[nn.Module], None]

PATTERN = 77


def reset(model: nn.Module) -> None:
    """Call ``reset_parameters`` of each module that has it."""
    for part in model.modules():
        if hasattr(part, "reset_parameters"):
            part.reset_parameters()


def initialize(model: nn.Module) -> None:
    """Call all initializers of a model."""
    reset(model)
    if hasattr(model, "_init_weights"):
        model.apply(model._init_weights)


INITS = (reset, initialize)


def list_tensors(model: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the parameters and buffers, a shared one once."""
    yield from model.named_parameters()
    yield from model.named_buffers()


def build_empty(build: Build) -> nn.Module:
    """Build a model on meta, and allocate its tensors on the CPU."""
    with torch.device("meta"):
        model = build()
    return model.to_empty(device="cpu")


def find_unwritten(build: Build, init: Init) -> set[str]:
    """Return the tensors that keep a pattern, on the CPU."""
    model = build_empty(build)
    with torch.no_grad():
        for _, tensor in list_tensors(model):
            tensor.fill_(PATTERN)
        init(model)
    return {
        name
        for name, tensor in list_tensors(model)
        if tensor.numel() and tensor.dtype != torch.bool and (tensor == PATTERN).all()
    }


def find_empty(build: Build, init: Init) -> set[str]:
    """Return the tensors that a recording names."""
    with meta_magic.record() as trace:
        model = build_empty(build)
        with torch.no_grad():
            init(model)
    pairs = zip(trace.modules, trace.roots, strict=True)
    (root,) = [root for root, reference in pairs if reference() is model]
    found = {one.name for one in trace.contents if one.is_empty}
    names = {name.removeprefix(f"{root.name}.") for name in found}
    # A pattern of True and False would say nothing.
    return names - {n for n, t in list_tensors(model) if t.dtype == torch.bool}


def find_built_empty(build: Build) -> set[str]:
    """Return the tensors that a recording names where nothing is allocated anew."""
    with meta_magic.record() as trace:
        model = build()
    del model
    return {str(one) for one in trace.contents if one.is_empty or one.is_other}


def list_builds() -> dict[str, Any]:
    """Return how to build each model."""
    builds = {
        name: architectures.make_build(name)
        for name in architectures.ARCHITECTURES
        if architectures.is_known(name)
    }
    return builds | {
        name: torch_modules.make_build(name) for name in torch_modules.MODULES
    }


def main(names: list[str]) -> None:
    """Print what differs, and the counts."""
    warnings.simplefilter("ignore")
    builds, counts = list_builds(), [0, 0, 0, 0]
    for name in names or builds:
        try:
            truths = {init: find_unwritten(builds[name], init) for init in INITS}
        except Exception as error:
            print(f"{name}: not on the CPU: {type(error).__name__}: {str(error)[:80]}")
            continue
        built = find_built_empty(builds[name])
        counts[0] += 1
        counts[3] += len(built)
        if built:
            print(f"{name}, as built: {sorted(built)[:3]}")
        for init, expected in truths.items():
            found = find_empty(builds[name], init)
            counts[1] += len(expected)
            counts[2] += len(expected & found)
            counts[3] += len(found - expected)
            if found != expected:
                missed, false = sorted(expected - found), sorted(found - expected)
                print(
                    f"{name}, {init.__name__}: missed {missed[:4]}, false {false[:4]}"
                )
    print("models {}, unwritten tensors {}, named {}, false {}".format(*counts))


if __name__ == "__main__":
    main(sys.argv[1:])
