"""Find the tensors in nested values and in modules."""

from collections.abc import Iterator
from typing import Final

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


def tensors_of(root: nn.Module) -> Iterator[Tensor]:
    """Yield the parameters and buffers of a module and all below it."""
    for _, module in walk_modules(root):
        for holder in (parameters_of(module), buffers_of(module)):
            for tensor in holder.values():
                if tensor is not None:
                    yield tensor


TRACED: Final = ("FakeTensor", "FunctionalTensor")


def is_traced(kind: type) -> bool:
    """Whether tensors of a class are proxies while torch traces."""
    return kind.__name__ in TRACED and kind.__module__.startswith("torch.")
