"""Tensors of values that are made inside of ``torch.func``'s transforms.

There torch puts a tensor of the transform around what is made: it has no storage of its
own, and on meta torch refuses to make it. Below the transforms it is made as elsewhere;
they take it up afterwards, as they do what is made on the CPU.
"""

from collections.abc import Callable
from typing import Any, Final

import torch
from torch import Tensor

from meta_magic.recording.signatures.entries import Args
from meta_magic.torch_private.modes import (
    BelowTransforms,
    DisableTorchDispatch,
    DisableTorchFunction,
    functorch_interpreter,
    get_unwrapped,
    is_batched,
    is_functorch_wrapped_tensor,
)

__all__ = ["make_below"]

LIFT: Final = torch.ops.aten.lift_fresh.default


def make_below(make: Callable[..., Any], args: Args) -> Any:
    """Make a tensor below the transforms that are running, and have them take it up.

    Args:
        make: Makes it.
        args: What it is called with; tensors as they are there. Those in lists are read
            as numbers.
    """
    if functorch_interpreter() is None:
        return make(*args)
    below = [*map(unwrap, args)]
    with BelowTransforms():
        made = make(*below)
    with DisableTorchFunction(), DisableTorchDispatch():  # torch lifts it unseen
        return LIFT(made)


def unwrap(value: Any) -> Any:
    """Return the tensor that transforms put theirs around; else what it is given.

    Raises:
        RuntimeError: One in a list has a number for each of what vmap goes over.
    """
    if isinstance(value, (list, tuple)):
        return type(value)([unwrap_number(item) for item in value])
    while isinstance(value, Tensor) and is_functorch_wrapped_tensor(value):
        value = get_unwrapped(value)
    return value


def unwrap_number(value: Any) -> Any:
    """Return a tensor below transforms that has one number there, or lists of them."""
    layer = value
    while isinstance(layer, Tensor) and is_functorch_wrapped_tensor(layer):
        if is_batched(layer):
            value.item()  # which torch refuses in its own words
        layer = get_unwrapped(layer)
    return unwrap(layer)
