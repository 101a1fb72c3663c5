"""Find and replace the tensors in nested values, and find those in modules."""

from collections.abc import Callable, Iterator
from typing import Any, Final

import torch
from torch import Tensor, nn

from meta_magic.torch_private.module_internals import (
    buffers_of,
    parameters_of,
    walk_modules,
)


def tensors_in(*values: object) -> list[Tensor]:
    """Return the tensors in ``values`` in order, looking into lists and tuples."""
    found: list[Tensor] = []
    for value in values:
        if isinstance(value, Tensor):
            found.append(value)
        elif isinstance(value, (list, tuple)):
            found.extend(tensors_in(*value))
        elif isinstance(value, dict):
            found.extend(tensors_in(*value.values()))
    return found


def rebuild(value: Any, replace: Callable[[Any], Any]) -> Any:
    """Return nested values in which ``replace`` is applied to all but containers."""
    kind = type(value)
    if kind in {list, tuple, torch.Size}:  # a named tuple may check what it holds
        items = [rebuild(item, replace) for item in value]
        return items if kind is list else tuple(items)
    if isinstance(value, dict):
        return {name: rebuild(item, replace) for name, item in value.items()}
    if kind is slice:
        parts = value.start, value.stop, value.step
        return slice(*[rebuild(part, replace) for part in parts])
    return replace(value)


def tensors_of(root: nn.Module) -> Iterator[Tensor]:
    """Yield the parameters and buffers of a module and all below it."""
    return (tensor for _, tensor in name_tensors(root))


def name_tensors(root: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yield the parameters and buffers below a module, each with its path."""
    for fqn, module in walk_modules(root):
        prefix = f"{fqn}." if fqn else ""
        for held in (parameters_of(module), buffers_of(module)):
            for name, tensor in held.items():
                if tensor is not None:
                    yield prefix + name, tensor


TRACED: Final = ("FakeTensor", "FunctionalTensor")


def is_traced(kind: type) -> bool:
    """Whether tensors of a class are proxies while torch traces."""
    return kind.__name__ in TRACED and kind.__module__.startswith("torch.")
