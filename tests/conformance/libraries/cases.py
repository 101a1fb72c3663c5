"""What the library sweep runs: how a model is built, called and trained."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_leaves


def find_loss(returned: Any) -> torch.Tensor:
    """Return a scalar that depends on everything that a model returned."""
    if hasattr(returned, "__dict__") and not isinstance(returned, (dict, torch.Tensor)):
        returned = vars(returned)
    tensors = [leaf for leaf in tree_leaves(returned) if isinstance(leaf, torch.Tensor)]
    return sum(t.float().mean() for t in tensors if t.requires_grad)


def train(module: nn.Module, call: Callable[[nn.Module], Any]) -> None:
    """Do one training step."""
    optimizer = torch.optim.SGD(module.parameters(), lr=0.01, momentum=0.9)
    find_loss(call(module.train())).backward()
    optimizer.step()


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A model, and what is done with it.

    Attributes:
        name: How it is called in its library.
        build: Builds it.
        call: Calls it on inputs of its own making.
        step: Trains it once, by :func:`call` if None.
    """

    name: str
    build: Callable[[], nn.Module]
    call: Callable[[nn.Module], Any]
    step: Callable[[nn.Module], None] | None = None

    def train(self, module: nn.Module) -> None:
        """Do one training step."""
        if self.step is None:
            train(module, self.call)
        else:
            self.step(module)


def count_parameters(build: Callable[[], nn.Module]) -> int:
    """Return how many parameters a model has, without memory for them."""
    try:
        with torch.device("meta"):
            return sum(p.numel() for p in build().parameters())
    except Exception:
        return -1


def keep_small(
    builds: dict[str, Callable[[], nn.Module]],
    group_of: Callable[[str], str],
    n_parameters: float,
    n_kept: int,
) -> list[str]:
    """Return the names of the smallest models of each group, in their order.

    Args:
        builds: What builds them, by name.
        group_of: Returns the group of a name.
        n_parameters: The most that one may have, unless it is its group's smallest.
        n_kept: The most that are kept of a group.
    """
    sizes: dict[str, list[tuple[int, str]]] = {}
    for name, build in builds.items():
        size = count_parameters(build)
        if size >= 0:
            sizes.setdefault(group_of(name), []).append((size, name))
    kept = set()
    for found in sizes.values():
        smallest, *others = sorted(found)[:n_kept]
        kept |= {smallest[1], *(name for size, name in others if size <= n_parameters)}
    return [name for name in builds if name in kept]


def on(*shapes: tuple[int, ...]) -> Callable[[nn.Module], Any]:
    """Return what calls a model on random tensors of these shapes."""
    return lambda module: module(*(torch.rand(shape) for shape in shapes))


Call = Callable[[nn.Module], Any]
Settings = dict[str, Any] | Callable[[], nn.Module]
"""Keyword arguments of a class, or a function that builds a model."""


def list_cases(
    library: str,
    models: Mapping[str, Settings | tuple[Settings, Call]],
    call: Call | None = None,
) -> Iterator[Case]:
    """Yield a case for each entry of a library's table.

    Args:
        library: Name of its package.
        models: By the path of a class below the package, what may follow a comma being
            a word on the settings: settings, or these and what calls the model.
        call: What calls the models beside which nothing stands.
    """
    for name, entry in models.items():
        settings, own = entry if isinstance(entry, tuple) else (entry, call)
        if callable(settings):
            build = settings
        else:
            file, _, class_name = f"{library}.{name.partition(',')[0]}".rpartition(".")
            build = partial(getattr(import_module(file), class_name), **settings)
        yield Case(name=name, build=build, call=own)
