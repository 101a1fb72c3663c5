"""Indices as torch reads them: it makes tensors of lists and numbers, unseen."""

from collections.abc import Callable, Sequence
from numbers import Real
from types import EllipsisType, NoneType
from typing import Any, Final

import torch

from meta_magic.recording.signatures.arguments import Args
from meta_magic.torch_private.modes import DisableTorchDispatch, DisableTorchFunction

__all__ = ["INDEXING", "prepare_index"]

INDEXING: Final = frozenset({torch.Tensor.__getitem__, torch.Tensor.__setitem__})
SLICES: Final = frozenset({int, slice, NoneType, EllipsisType})

Keep = Callable[..., None]
"""Takes a tensor, the function that made it, and its arguments."""


def prepare_index(args: Args, device: str, keep: Keep) -> Sequence[Any]:
    """Return the arguments of an indexing method, with tensors of known values.

    Args:
        args: The tensor, the index, and what is written.
        device: Whose operators are recorded. A number is written from a tensor on the
            CPU there, which fills; torch would make one on meta, which is copied.
        keep: Notes the values of what is made.
    """
    tensor, index, *rest = args
    if not tensor.is_meta:
        return args
    if type(index) is tuple:
        index = tuple([keep_positions(item, keep) for item in index])
    else:
        index = keep_positions(index, keep)
    is_number = bool(rest) and isinstance(rest[0], Real)
    if is_number and device != "meta" and is_of_slices(index):
        with DisableTorchFunction(), DisableTorchDispatch():
            rest = [torch.tensor(rest[0], dtype=tensor.dtype, device="cpu")]
    return (tensor, index, *rest)


def keep_positions(item: Any, keep: Keep) -> Any:
    """Return a list of integers as a tensor, and anything else as it is."""
    if type(item) is not list or not item or {*map(type, item)} != {int}:
        return item
    made = torch.tensor(item, device="meta")
    keep(made, torch.tensor, (item,), {})
    return made


def is_of_slices(index: Any) -> bool:
    """Whether an index has no tensors or lists, and so makes a view."""
    parts = index if type(index) is tuple else (index,)
    return all(type(part) in SLICES for part in parts)
