"""Torch's own layers that call one function, and what they give it."""

from collections.abc import Callable
from typing import Any, Final, NamedTuple

from torch import Tensor, nn
from torch.nn import functional

from meta_magic.torch_private.module_internals import (
    is_of_torch,
    is_torch_convolving,
    parameters_of,
)

__all__ = ["LAYERS", "Layer"]

Given = tuple[tuple[Any, ...], dict[str, Any] | None]
"""What a function is called with, by position and by name."""


class Layer(NamedTuple):
    """What a class of torch's own modules calls.

    Attributes:
        kind: The class.
        name: The name of the function in ``torch.nn.functional``.
        read: Returns what that is given, of a module and what that is called with.
        function: The function.
        forward: The method that calls it.
    """

    kind: type[nn.Module]
    name: str
    read: Callable[[Any, Tensor], Given]
    function: Any
    forward: Any


def layer_of(
    kind: type[nn.Module], name: str, read: Callable[[Any, Tensor], Given]
) -> Layer:
    """Return a layer whose ``forward`` calls a function, both as they are now."""
    return Layer(kind, name, read, getattr(functional, name), kind.forward)


def read_linear(module: nn.Module, x: Tensor) -> Given:
    """Return what ``nn.Linear`` gives."""
    own = parameters_of(module)
    return (x, own["weight"], own["bias"]), None


def read_norm(module: Any, x: Tensor) -> Given:
    """Return what ``nn.LayerNorm`` gives."""
    own = parameters_of(module)
    named = {"weight": own["weight"], "bias": own["bias"], "eps": module.eps}
    return (x, module.normalized_shape), named


def read_rms_norm(module: Any, x: Tensor) -> Given:
    """Return what ``nn.RMSNorm`` gives."""
    named = {"weight": parameters_of(module)["weight"], "eps": module.eps}
    return (x, module.normalized_shape), named


def read_groups(module: Any, x: Tensor) -> Given:
    """Return what ``nn.GroupNorm`` gives."""
    own = parameters_of(module)
    named = {"weight": own["weight"], "bias": own["bias"], "eps": module.eps}
    return (x, module.num_groups), named


def read_convolution(module: Any, x: Tensor) -> Given:
    """Return what ``nn.Conv2d`` gives, and its like, unless it pads first.

    Raises:
        KeyError: If it does, or calls somebody else's method.
    """
    if module.padding_mode != "zeros" or not is_torch_convolving(type(module)):
        raise KeyError(module.padding_mode)
    own = parameters_of(module)
    taken = module.stride, module.padding, module.dilation, module.groups
    return (x, own["weight"], own["bias"], *taken), None


def read_embedding(module: Any, x: Tensor) -> Given:
    """Return what ``nn.Embedding`` gives."""
    named = {
        "padding_idx": module.padding_idx,
        "max_norm": module.max_norm,
        "norm_type": module.norm_type,
        "scale_grad_by_freq": module.scale_grad_by_freq,
        "sparse": module.sparse,
    }
    return (x, parameters_of(module)["weight"]), named


def read_dropout(module: Any, x: Tensor) -> Given:
    """Return what ``nn.Dropout`` gives."""
    named = {"p": module.p, "training": module.training, "inplace": module.inplace}
    return (x,), named


def read_inplace(module: Any, x: Tensor) -> Given:
    """Return what ``nn.ReLU`` and ``nn.SiLU`` give."""
    return (x,), {"inplace": module.inplace}


def read_gelu(module: Any, x: Tensor) -> Given:
    """Return what ``nn.GELU`` gives."""
    return (x,), {"approximate": module.approximate}


EACH: Final = (
    layer_of(nn.Linear, "linear", read_linear),
    layer_of(nn.LayerNorm, "layer_norm", read_norm),
    layer_of(nn.Dropout, "dropout", read_dropout),
    layer_of(nn.ReLU, "relu", read_inplace),
    layer_of(nn.SiLU, "silu", read_inplace),
    layer_of(nn.GELU, "gelu", read_gelu),
    layer_of(nn.RMSNorm, "rms_norm", read_rms_norm),
    layer_of(nn.GroupNorm, "group_norm", read_groups),
    layer_of(nn.Embedding, "embedding", read_embedding),
    layer_of(nn.Conv1d, "conv1d", read_convolution),
    layer_of(nn.Conv2d, "conv2d", read_convolution),
    layer_of(nn.Conv3d, "conv3d", read_convolution),
)

LAYERS: Final = tuple(layer for layer in EACH if is_of_torch(layer.function))
"""Those whose function is torch's own: somebody may have put another in its place."""
