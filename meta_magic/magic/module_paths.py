"""Modules of the user's namespace, as one writes them: ``model.layers[0]``."""

import sys
from collections.abc import Mapping
from itertools import islice
from typing import Any, Final

__all__ = ["complete_path"]

MAX_LOOK: Final = 100
"""Items of a list or dict of the user's that are looked at for a module."""


def complete_path(namespace: Mapping[str, Any], typed: str) -> list[str]:
    """Return the paths of modules that begin with what was typed, one level deeper.

    Nothing but lists, dicts and modules is looked into, so that no code of the user's
    runs.
    """
    if "torch" not in sys.modules:
        return []
    known = {
        name: value
        for name, value in namespace.items()
        if (typed[:1] == "_" or name[:1] != "_") and has_modules(value)
    }
    while True:
        inside = [path for path in known if typed.startswith((f"{path}.", f"{path}["))]
        if not inside:
            return [path for path in known if path.startswith(typed)]
        path = max(inside, key=len)
        known = {path + step: below for step, below in list_steps(known[path]).items()}


def list_steps(value: Any) -> dict[str, Any]:
    """Return what is below a module, list or dict, by how one writes the way there."""
    if isinstance(value, list | tuple):
        return {f"[{i}]": item for i, item in enumerate(value) if has_modules(item)}
    if isinstance(value, dict):
        return {f"[{key!r}]": item for key, item in value.items() if has_modules(item)}
    children = dict(value.named_children())
    return {
        f"[{name}]" if name.isdecimal() else f".{name}": child
        for name, child in children.items()
        if name.isdecimal() or name.isidentifier()
    }


def has_modules(value: Any) -> bool:
    """Whether a value is a module, or a list or dict with one among its first items."""
    from torch import nn  # noqa: PLC0415  is there already

    if isinstance(value, nn.Module):
        return True
    items = value.values() if isinstance(value, dict) else value
    is_list = isinstance(value, dict | list | tuple)
    return is_list and any(isinstance(i, nn.Module) for i in islice(items, MAX_LOOK))
