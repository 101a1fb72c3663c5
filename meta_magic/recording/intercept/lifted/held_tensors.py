"""Which modules hold real tensors."""

from torch import nn

from meta_magic.torch_private.module_internals import (
    buffers_of,
    children_of,
    parameters_of,
    walk_modules,
)

__all__ = ["find_on_meta", "is_real"]


def find_on_meta(root: nn.Module) -> list[nn.Module] | None:
    """Return a module and all below it, or None if they hold a real tensor."""
    walked, opened = [root], set[int]()
    for module in walked:
        held = (*parameters_of(module).values(), *buffers_of(module).values())
        for tensor in held:
            if tensor is not None and not tensor.is_meta:
                return None
        children = children_of(module)
        if children and id(module) not in opened:
            opened.add(id(module))
            walked += [m for m in children.values() if m is not None]
    return walked


def is_real(root: nn.Module) -> bool | None:
    """Whether a module holds a real tensor; if it holds none, whether one below does.

    Returns:
        None if neither it nor what is below it holds a tensor.
    """
    for _, module in walk_modules(root):
        is_holding = False
        for holder in (parameters_of(module), buffers_of(module)):
            for tensor in holder.values():
                if tensor is not None:
                    if not tensor.is_meta:
                        return True
                    is_holding = True
        if is_holding:
            return False
    return None
