"""Lift real tensors onto the meta device."""

from typing import Any

from torch import Tensor
from torch.nn import Parameter

from meta_magic.torch_private.tensor_internals import MetaConverter

__all__ = ["meta_like"]


def meta_like(tensor: Tensor) -> Tensor:
    """Return a tensor on meta that is like a real one in all but its data.

    Shape, strides, offset, dtype, ``requires_grad`` and subclass are kept; a view is
    the view of a base, of the same size as that of the real one.

    Args:
        tensor: Any tensor; one on meta is copied like the others.

    Raises:
        TypeError: It is no tensor, or of a kind that has no likeness on meta.

    Source:
        ``torch._subclasses.meta_utils.MetaConverter``, as FakeTensorMode uses it.

    Example:
        >>> weight = torch.ones(2, 3)
        >>> with record() as trace:
        ...     y = meta_like(weight) @ torch.ones(3, 4)
        >>> trace.ops[-1].outputs[0].shape
        (2, 4)
    """
    if not isinstance(tensor, Tensor):
        raise TypeError(f"meta_like() takes a tensor, not a {type(tensor).__name__}")
    lifted: Any = MetaConverter()(tensor)
    if lifted is NotImplemented:
        name, layout = type(tensor).__name__, tensor.layout
        raise TypeError(f"a {name} of layout {layout} has no likeness on meta")
    like: Tensor = lifted
    if isinstance(tensor, Parameter):
        return Parameter(like.detach(), requires_grad=tensor.requires_grad)
    return like
