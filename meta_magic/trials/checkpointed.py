"""Checkpoint modules whose code does not: they save what they are given alone."""

from collections.abc import Callable, Iterator
from fnmatch import fnmatchcase
from functools import partial, wraps
from typing import Any, Final
from weakref import WeakKeyDictionary

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

__all__ = ["checkpoint_modules"]

MAX_NAMED: Final = 12
"""How many classes of modules a message names."""


def checkpoint_modules(pattern: str) -> Callable[[], str | None]:
    """Have modules compute again in the backward pass what they do in the forward.

    Args:
        pattern: Of the modules' names within the one that is called first, or of their
            classes' names, as ``fnmatch`` reads it; "" for the blocks, see below. None
            within another that is meant, too.

    Returns:
        What says why no module was meant, once all has run; None if some were.
    """
    call = nn.Module.__call__
    is_meant: WeakKeyDictionary[nn.Module, bool] = WeakKeyDictionary()
    example_by_class: dict[str, str] = {}

    def meet(root: nn.Module) -> None:
        found = find_matches(root, pattern) if pattern else find_blocks(root)
        meant = {id(module) for module in found}
        for name, module in root.named_modules():
            is_meant[module] = id(module) in meant
            example_by_class.setdefault(type(module).__name__, name)

    @wraps(call)
    def call_checkpointed(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
        if module not in is_meant:  # a root: calls of what is in it come after
            meet(module)
            met_any.append(any(is_meant.values()))
        run = partial(call, module)
        if is_meant[module] and module.training and torch.is_grad_enabled():
            return checkpoint(run, *args, use_reentrant=False, **kwargs)
        return run(*args, **kwargs)

    def find_fault() -> str | None:
        return None if any(met_any) else describe_others(pattern, example_by_class)

    met_any: list[bool] = []
    nn.Module.__call__ = call_checkpointed  # type: ignore[method-assign]  # on purpose
    return find_fault


def find_blocks(module: nn.Module) -> Iterator[nn.Module]:
    """Yield the outermost blocks of a module.

    Blocks are modules of one class, with modules in them, that stand beside each other
    in a list or a sequence.
    """
    for child in module.children():
        kinds = [type(one) for one in child.children()]
        is_row = isinstance(child, (nn.ModuleList, nn.Sequential))
        blocks = [
            one
            for one in child.children()
            if is_row and kinds.count(type(one)) > 1 and any(one.children())
        ]
        yield from blocks
        if not blocks:
            yield from find_blocks(child)


def find_matches(root: nn.Module, pattern: str) -> Iterator[nn.Module]:
    """Yield the outermost modules whose name or class a pattern describes."""
    if fnmatchcase(type(root).__name__, pattern):
        yield root
        return
    within: str | None = None
    for name, module in root.named_modules():  # what holds others comes before them
        if not name or (within is not None and name.startswith(within)):
            continue
        if fnmatchcase(name, pattern) or fnmatchcase(type(module).__name__, pattern):
            within = f"{name}."
            yield module


def describe_others(pattern: str, example_by_class: dict[str, str]) -> str:
    """Return that no module was meant, and those that could be.

    Args:
        pattern: The pattern; "" for blocks.
        example_by_class: The name of a module of each class that was called.
    """
    if not example_by_class:
        return "has no module to checkpoint: it calls none"
    others = [
        f"{kind} ({name})" if name else kind for kind, name in example_by_class.items()
    ]
    more = ", ..." if len(others) > MAX_NAMED else ""
    what = f"that {pattern!r} names" if pattern else "in a row of its kind"
    hint = "" if pattern else "; name some, as checkpointing:PATTERN does"
    known = ", ".join(others[:MAX_NAMED])
    return f"has no module {what} among {known}{more}{hint}"
