"""How one writes the way from a module to one below it, such as ``.layers[0]``."""

from keyword import iskeyword
from typing import Final

from torch import nn

__all__ = ["write_step"]

INDEXED: Final = (nn.Sequential, nn.ModuleList)


def write_step(module: nn.Module, name: str) -> str:
    """Return what is written behind a module for the one that it holds by a name."""
    kind = type(module)
    if name.isdecimal() and issubclass(kind, INDEXED):
        return f"[{name}]"
    if name.isidentifier() and not iskeyword(name):
        return f".{name}"
    if issubclass(kind, nn.ModuleDict):
        return f"[{name!r}]"
    return f".get_submodule({name!r})"
