"""Decide which real tensors become constants, and replace them in arguments.

Also: whether a module holds real tensors. Read ``is_capturable`` first.
"""

from collections.abc import Sequence
from typing import Any, Final

import torch
from torch import Tensor, nn

from meta_magic.errors import MixedDeviceError
from meta_magic.recording.identities.geometries import QUANTIZED
from meta_magic.recording.identities.nested_tensors import tensors_in
from meta_magic.recording.intercept.mixed_devices import takes_numbers
from meta_magic.recording.signatures.entries import Kwargs, OpTable
from meta_magic.torch_private.modes import DisableTorchFunction
from meta_magic.torch_private.module_internals import (
    buffers_of,
    children_of,
    parameters_of,
    walk_modules,
)

RECURRENT: Final = frozenset({"lstm", "gru", "rnn_tanh", "rnn_relu"})
"""Functions that read the batch sizes of packed sequences, which stay real."""

READS_REAL: Final = frozenset(
    {"aten.copy_.default", "aten._pack_padded_sequence.default"}
    | {"aten._pad_packed_sequence.default"}
)
"""Operators that accept real tensors beside meta tensors."""


class MustBorrow(MixedDeviceError):  # noqa: N818  a request; an error if the tensor is no leaf
    """A real tensor that wants a gradient is used with meta tensors.

    Attributes:
        tensors: The real tensors.
    """

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self.tensors = tensors
        super().__init__(
            "real operators made a tensor, through which no gradient would flow back "
            "from meta (see .detach(), torch.no_grad(), or make it in the cell)"
        )


def is_capturable(tensor: Tensor, table: OpTable | None = None) -> bool:
    """Whether a tensor is real, and a constant can replace it.

    Args:
        table: The operator; some accept a real number beside meta tensors.
    """
    if tensor.is_meta or type(tensor) not in (Tensor, nn.Parameter):
        return False
    is_dense = tensor.layout is torch.strided and tensor.dtype not in QUANTIZED
    if not is_dense or tensor.is_nested:
        return False
    if tensor.ndim or table is None or wants_gradient(tensor):
        return True
    return not takes_numbers(table)


def is_sizes(func: Any, tensor: Tensor) -> bool:
    """Whether a tensor holds the sizes of batches of packed sequences."""
    is_like_that = tensor.dtype is torch.int64 and tensor.ndim == 1
    return is_like_that and getattr(func, "__name__", "") in RECURRENT


def count_real(*values: object) -> int:
    """Return how many tensors in values are real."""
    with DisableTorchFunction():
        return sum(not tensor.is_meta for tensor in tensors_in(*values))


def wants_gradient(tensor: Tensor) -> bool:
    """Whether autograd would compute a gradient of a tensor."""
    return tensor.requires_grad and torch.is_grad_enabled()


def may_write(func: Any, kwargs: Kwargs) -> bool:
    """Whether a function may write its arguments."""
    name = getattr(func, "__name__", "")
    is_operator = name.startswith("__i") or name == "__setitem__"
    return is_operator or name.endswith("_") or kwargs.get("out") is not None


def find_on_meta(root: nn.Module) -> list[nn.Module] | None:
    """Return a module and all modules below it, or None if any tensor is real."""
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
