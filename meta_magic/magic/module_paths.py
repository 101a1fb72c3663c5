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

    Nothing but lists, dicts and modules is looked into, past any method of their
    classes, so that no code of the user's runs.
    """
    if "torch" not in sys.modules:
        return []
    known = {
        name: value
        for name, value in list(namespace.items())
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
    from meta_magic.materializing.written_paths import (  # noqa: PLC0415  torch
        write_step,
    )
    from meta_magic.session.operand_names import walk_held  # noqa: PLC0415
    from meta_magic.torch_private.module_internals import children_of  # noqa: PLC0415

    if not is_module(value):
        return {step: held for step, held in walk_held(value) if has_modules(held)}
    try:
        children = children_of(value)
    except AttributeError:  # its class did not call nn.Module's __init__
        return {}
    return {write_step(value, n): m for n, m in children.items() if m is not None}


def has_modules(value: object) -> bool:
    """Whether a value is a module, or a list or dict with one among its first items."""
    from meta_magic.session.operand_names import walk_held  # noqa: PLC0415  torch

    if is_module(value):
        return True
    if not issubclass(type(value), list | tuple | dict):
        return False
    return any(is_module(held) for _, held in islice(walk_held(value), MAX_LOOK))


def is_module(value: object) -> bool:
    """Whether a value is a module; by ``isinstance``, its class would be asked."""
    from torch import nn  # noqa: PLC0415  is there already

    return issubclass(type(value), nn.Module)
