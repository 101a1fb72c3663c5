"""Prepare indices as torch reads them: no mode sees how it makes tensors of lists."""

from collections.abc import Callable, Mapping, Sequence
from numbers import Number
from types import EllipsisType, NoneType
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

from meta_magic.recording.as_device.cpu_kernels import fills_with_numbers
from meta_magic.recording.intercept.factories import join_values
from meta_magic.recording.signatures.entries import Args
from meta_magic.torch_private.modes import (
    BelowTransforms,
    DisableTorchDispatch,
    DisableTorchFunction,
)

INDEXING: Final = frozenset({torch.Tensor.__getitem__, torch.Tensor.__setitem__})
SLICES: Final = frozenset({int, slice, NoneType, EllipsisType})
TRUTHS: Final = frozenset({torch.bool, torch.uint8})
INTEGERS: Final = frozenset({torch.int8, torch.int16, torch.int32, torch.int64})
NO_SEQUENCES: Final = SLICES | {Tensor, bool, float, str, np.ndarray}
WRITTEN: Final = (int, float, complex, np.integer)
"""Types of numbers that torch writes at an index; it refuses other types of numpy."""

MAX_LIKE_TUPLE: Final = 32  # items from which on torch makes a tensor of any list

Keep = Callable[..., None]
"""Takes a tensor, the function that made it, and its arguments."""


def prepare_index(func: Any, args: Args, device: str, keep: Keep) -> tuple[Any, Any]:
    """Return an indexing method and its arguments, with tensors of known values.

    Where the device fills with a written number, which meta would copy, the method
    fills a view.
    """
    tensor, index, *rest = args
    parts = index if type(index) is tuple else (index,)
    if not tensor.is_meta:
        return func, args
    if SLICES.issuperset(map(type, parts)):
        is_element = len(parts) == tensor.ndim and {int}.issuperset(map(type, parts))
        if not rest or (is_element and type(rest[0]) is Tensor):
            return func, args
    if isinstance(index, tuple) or is_like_tuple(index):
        index = tuple([keep_positions(item, keep) for item in index])
    else:
        index = keep_positions(index, keep)
    only = index[0] if type(index) is tuple and len(index) == 1 else index
    if device != "meta" and is_truth(only, is_read=not rest):
        tensor, index = find_at_truth(tensor, only)
    if not rest or device == "meta":
        return func, (tensor, index, *rest)
    parts = index if type(index) is tuple else (index,)
    is_view = all(type(part) in SLICES or is_position(part) for part in parts)
    is_number = isinstance(rest[0], WRITTEN)
    if is_number and fills_with_numbers() and is_of_one_tensor(parts):
        return func, (tensor, index, *rest)
    if is_number:
        with DisableTorchFunction(), DisableTorchDispatch():
            rest = [torch.full((), rest[0], dtype=tensor.dtype, device="cpu")]
    elif device == "cpu" and is_view and is_scalar(rest[0]):
        view = find_filled(tensor, parts)
        if view is not None:
            return torch.Tensor.fill_, (view, *rest)
    return func, (tensor, index, *rest)


def is_truth(index: Any, *, is_read: bool) -> bool:
    """Whether an index is one boolean, for which torch adds a dimension."""
    if isinstance(index, Tensor):
        return not index.ndim and index.dtype in TRUTHS
    return is_read and isinstance(index, bool)


def find_at_truth(tensor: Tensor, index: Any) -> tuple[Tensor, tuple[Tensor]]:
    """Return the view that torch indexes at a boolean, and the positions.

    Source: ``boolToIndexingTensorCPUOrCUDA`` in ``TensorIndexing.h``: meta gets zeros.
    """
    view = tensor.unsqueeze(0)
    if not index:
        return view, (torch.empty(0, dtype=torch.long, device="meta"),)
    return view, (torch.empty(1, dtype=torch.long, device="meta").fill_(0),)


def find_filled(tensor: Tensor, parts: tuple[Any, ...]) -> Tensor | None:
    """Return the view that torch fills at an index; None if it copies one element."""
    with DisableTorchFunction(), DisableTorchDispatch():
        written = tensor[tuple(0 if is_position(part) else part for part in parts)]
        is_whole = written.shape == tensor.shape and written.stride() == tensor.stride()
        is_element = not written.ndim
    if is_element:
        return None
    return tensor if is_whole else tensor[parts]


def is_scalar(value: Any) -> bool:
    """Whether a value is a tensor on meta without dimensions."""
    return isinstance(value, Tensor) and value.is_meta and not value.ndim


def is_like_tuple(index: Any) -> bool:
    """Whether torch takes a sequence for a tuple: if it has items besides numbers."""
    is_short = is_sequence(index) and len(index) < MAX_LIKE_TUPLE
    return is_short and not all(isinstance(item, Number) for item in index)


def is_sequence(value: Any) -> bool:
    """Whether torch reads a value item by item: a list, a range, another sequence."""
    kind = type(value)
    return (
        kind not in NO_SEQUENCES
        and hasattr(kind, "__getitem__")
        and hasattr(kind, "__len__")
        and not issubclass(kind, (Tensor, np.ndarray, Mapping, str, bytes))
    )


def keep_positions(item: Any, keep: Keep) -> Any:
    """Return a list of positions or booleans as a tensor; other values unchanged."""
    if not is_sequence(item):
        return item
    if not is_of_numbers(item):
        positions = list_positions(item)
        return item if positions is None else join_positions(positions, keep)
    with DisableTorchDispatch(), BelowTransforms():  # no mode sees it in torch
        made = torch.tensor(item, device="meta")
        if made.dtype is not torch.bool:
            made = torch.tensor(item, dtype=torch.long, device="meta")
        keep(made, torch.tensor, (item,), {})
    return made


def list_positions(item: Any) -> Any:
    """Return nested sequences of numbers and 0-d tensors as lists; None for others."""
    if is_sequence(item):
        parts = [list_positions(part) for part in item]
        return None if any(part is None for part in parts) else parts
    is_one = is_scalar(item) and item.dtype in INTEGERS | TRUTHS
    return item if is_one or isinstance(item, Number) else None


def join_positions(positions: list[Any], keep: Keep) -> Tensor:
    """Return a tensor of positions among which there are tensors."""

    def make(values: Any) -> Tensor:
        with DisableTorchDispatch(), BelowTransforms():
            return torch.tensor(values, device="meta")

    def make_one(value: Any) -> Tensor:
        if isinstance(value, Tensor):
            return value.detach().to(dtype)
        number = make([value]).to(dtype)
        keep(number, torch.tensor, ([value],), {})
        return number

    like = make(positions)
    dtype = torch.bool if like.dtype is torch.bool else torch.long
    return join_values(positions, like, make_one)


def is_of_numbers(item: Any) -> bool:
    """Whether a value is a number, or a sequence of nothing else."""
    if is_sequence(item):
        return all(map(is_of_numbers, item))
    return isinstance(item, Number)


def is_of_one_tensor(parts: Sequence[Any]) -> bool:
    """Whether an index has at most one tensor of positions or booleans."""
    tensors = [p for p in parts if getattr(p, "ndim", 0)]
    dtypes = [str(t.dtype).removeprefix("torch.") for t in tensors]  # of numpy's, too
    return not dtypes or dtypes in (["int64"], ["bool"])


def is_position(part: Any) -> bool:
    """Whether torch takes a tensor in an index for a number."""
    return isinstance(part, Tensor) and not part.ndim and part.dtype in INTEGERS
