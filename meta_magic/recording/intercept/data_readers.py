"""Methods that read the data of a tensor, which torch refuses before any operator."""

from typing import Any, Final

import torch

from meta_magic.recording.signatures.arguments import Args, Kwargs

__all__ = ["DATA_READERS", "describe_values", "read_data"]

SPLITS: Final = frozenset[Any]((torch.tensor_split, torch.Tensor.tensor_split))
DATA_READERS: Final = SPLITS.union(
    getattr(torch.Tensor, name)
    for name in ("numpy", "__array__", "__format__", "__repr__", "pin_memory")
).union({torch.Tensor.record_stream})
FORMAT: Final[Any] = torch.Tensor.__format__
REPR: Final[Any] = torch.Tensor.__repr__
NO_VALUES: Final = "tensor(..."
"""How torch begins to write a meta tensor."""


def read_data(func: Any, args: Args, kwargs: Kwargs) -> Any:
    """Call a method that reads the data of a tensor on its real values."""
    tensor, *rest = args
    if func is torch.Tensor.pin_memory:
        return tensor
    if func is torch.Tensor.record_stream:
        return None
    if func in SPLITS:  # at positions that may lie in a tensor
        rest = [v.cpu() if isinstance(v, torch.Tensor) else v for v in rest]
        positions = kwargs.get("tensor_indices_or_sections")
        if positions is not None:
            kwargs = {**kwargs, "tensor_indices_or_sections": positions.cpu()}
        return func(tensor, *rest, **kwargs)
    if func is FORMAT and tensor.ndim:
        return func(*args, **kwargs)
    return func(tensor.cpu(), *rest, **kwargs)


def describe_values(tensor: torch.Tensor, real: torch.Tensor | None) -> str:
    """Return a meta tensor as torch writes it, with its values if they are known."""
    text: str = REPR(tensor)
    head, found, tail = text.partition(NO_VALUES)
    if real is None or not found:
        return text
    # Of ``tensor([1, 2], dtype=torch.int32)`` the values: the rest is said already.
    values: str = repr(real.detach()).removesuffix(")").partition(", dtype=")[0]
    return head + values + tail
