"""How a construction is noted, and a module put together."""

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

Build = Callable[[], nn.Module]


def note_in(constructions: dict[str, Build]) -> Callable[[Build], Build]:
    """Return a decorator that notes a construction under its name, in words."""

    def construction(build: Build) -> Build:
        constructions[build.__name__.replace("_", " ").strip()] = build
        return build

    return construction


def module_of(**tensors: Any) -> nn.Module:
    """Return a module with parameters, buffers and submodules of these names."""
    module = nn.Module()
    for name, value in tensors.items():
        if isinstance(value, Tensor) and not isinstance(value, nn.Parameter):
            module.register_buffer(name, value)
        else:
            setattr(module, name, value)
    return module
