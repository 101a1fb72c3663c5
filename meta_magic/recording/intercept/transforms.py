"""Tensors of values that are made inside of ``torch.func``'s transforms.

There torch puts a tensor of the transform around what is made: it has no storage of its
own, and on meta torch refuses to make it. Below the transforms it is made as elsewhere;
they take it up afterwards, as they do what is made on the CPU.
"""

from collections.abc import Callable
from typing import Any, Final

import torch
from torch import Tensor

from meta_magic.recording.signatures.arguments import Args
from meta_magic.torch_private.modes import (
    BelowTransforms,
    DisableTorchDispatch,
    DisableTorchFunction,
    functorch_interpreter,
    get_unwrapped,
    is_functorch_wrapped_tensor,
)

__all__ = ["make_below"]

LIFT: Final = torch.ops.aten.lift_fresh.default


def make_below(make: Callable[..., Any], args: Args) -> Any:
    """Make a tensor below the transforms that are running, and have them take it up.

    Args:
        make: Makes it.
        args: What it is called with; tensors as they are there.
    """
    if functorch_interpreter() is None:
        return make(*args)
    with BelowTransforms():
        made = make(*map(unwrap, args))
    with DisableTorchFunction(), DisableTorchDispatch():  # torch lifts it unseen
        return LIFT(made)


def unwrap(value: Any) -> Any:
    """Return the tensor that transforms put theirs around; else what it is given."""
    while isinstance(value, Tensor) and is_functorch_wrapped_tensor(value):
        value = get_unwrapped(value)
    return value
