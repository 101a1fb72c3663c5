"""The modules of torch's own module database."""

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn.modules.lazy import LazyModuleMixin

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from torch.testing._internal.common_modules import module_db


MODULES: dict[str, Any] = {info.name: info for info in module_db}


def make_samples(name: str) -> list[Any]:
    """Return the samples of a module, with tensors on the default device."""
    info = MODULES[name]
    samples = info.module_inputs_func(
        info,
        device=str(torch.empty(0).device),
        dtype=torch.float32,
        requires_grad=False,
        training=True,
    )
    return list(samples)


def count_samples(name: str) -> int:
    """Return how many modules :func:`make_build` builds for a name."""
    return len(make_samples(name))


def make_build(name: str) -> Callable[[], nn.Module]:
    """Return a function that builds a module from each sample of its constructor.

    The samples are made in there, too: some hold tensors or modules, which then are on
    meta where the rest is. Lazy modules are called once. A last layer draws random
    numbers, so that the generator must stand behind those that the samples drew.
    """

    def build() -> nn.Module:
        modules = []
        for sample in make_samples(name):
            given = sample.constructor_input
            module = MODULES[name].module_cls(*given.args, **given.kwargs)
            if isinstance(module, LazyModuleMixin):
                module(*sample.forward_input.args)
            modules.append(module)
        return nn.ModuleList([*modules, nn.Linear(1, 1)])

    return build
