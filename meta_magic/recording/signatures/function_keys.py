"""Serve whole calls of torch's functions: the signature cache, one floor higher.

Without its kernel an operator still costs the way through torch's dispatcher, and some
functions make many operators: attention on meta makes 27. A pure function called again
with the same metadata makes the same operators, so its rows are written again with new
numbers, and only the tensors that it returns are made.

This holds only while nothing else looks on or changes what the function does: no
gradient is recorded for it, and no other mode, transform, autocast or tracer is active.
What a function did is learnt by watching it once; see :mod:`templates`.
"""

from collections.abc import Callable, Iterable
from types import BuiltinFunctionType, MethodDescriptorType
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.nn import functional

from meta_magic.recording.identities.tensors import TensorRegistry
from meta_magic.recording.signatures.arguments import Args, Kwargs
from meta_magic.recording.signatures.entries import PLAIN, plain_float, sharing
from meta_magic.recording.signatures.templates import Argument
from meta_magic.torch_private.attention_operators import attention_priorities
from meta_magic.torch_private.autograd import current_autograd_node
from meta_magic.torch_private.modes import (
    device_constructors,
    forward_mode_level,
    functorch_interpreter,
    is_any_autocast_enabled,
    is_deterministic,
    n_dispatch_modes,
    tracing_state,
)
from meta_magic.torch_private.module_internals import native_functions, replaced_natives

__all__ = ["build_key", "is_alone", "is_pure"]

PYTHON_FUNCTIONS: Final[dict[Any, tuple[dict[str, Any], str]]] = {
    functional.silu: (vars(native_functions), "silu"),
    functional.dropout: (replaced_natives, "dropout"),
} | {
    getattr(functional, name): (vars(torch), name)
    for name in ("relu", "layer_norm", "rms_norm", "group_norm", "embedding")
}
"""Those written in Python that neither warn nor keep state, and where each looks for
what it calls: somebody may have put something else there."""

ATTENTION: Final = functional.scaled_dot_product_attention
SWITCHES: Final[tuple[Callable[[], bool], ...]] = (
    torch.backends.cuda.flash_sdp_enabled,
    torch.backends.cuda.mem_efficient_sdp_enabled,
    torch.backends.cuda.cudnn_sdp_enabled,
    torch.backends.cuda.math_sdp_enabled,
)
"""They decide which kernel attention is."""

default_dtype = torch.get_default_dtype
is_grad_enabled = torch.is_grad_enabled
is_inference_mode = torch.is_inference_mode_enabled

SEQUENCES: Final = frozenset({list, tuple, torch.Size})


def is_pure(function: Any) -> bool:
    """Whether a function's operators depend on nothing but its arguments' metadata."""
    if function in PYTHON_FUNCTIONS or function is Tensor.__getitem__:
        return True
    name = getattr(function, "__name__", "_")
    if name.endswith("_") or function in device_constructors():
        return False
    if isinstance(function, BuiltinFunctionType):
        home = next((m for m in (functional, torch) if hasattr(m, name)), None)
        is_public = home is not None and getattr(home, name) is function
    else:
        is_public = isinstance(function, MethodDescriptorType) and (
            getattr(Tensor, name, None) is function
        )
    return is_public and hasattr(torch.ops.aten, name)


def is_alone() -> bool:
    """Whether nothing but this recording looks on, and no gradient pass runs."""
    return (
        n_dispatch_modes() == 1
        and functorch_interpreter() is None
        and not is_any_autocast_enabled()
        and current_autograd_node() is None
        and tracing_state() is None
        and forward_mode_level() < 0
    )


def build_key(
    registry: TensorRegistry,
    function: Any,
    args: Args,
    kwargs: Kwargs | None,
) -> tuple[tuple[object, ...] | None, list[Argument]]:
    """Return what decides a call's operators, and the tensors among its arguments.

    The key is None if the call cannot be served: a gradient is recorded for it, or an
    argument is neither a strided meta tensor nor a plain value.
    """
    inputs: list[Argument] = []
    key: list[object] = [
        function,
        default_dtype(),
        is_deterministic(),
        is_inference_mode(),
    ]
    if function in PYTHON_FUNCTIONS:
        names, name = PYTHON_FUNCTIONS[function]
        key.append(names.get(name))
    elif function is ATTENTION:
        key += (*attention_priorities(), *(is_on() for is_on in SWITCHES))
    is_servable = extend_key(registry, args, key, inputs)
    if is_servable and kwargs:
        key += kwargs
        is_servable = extend_key(registry, kwargs.values(), key, inputs)
    if not is_servable:
        return None, inputs
    if len(inputs) > 1:
        key += sharing([tensor for tensor, _, _ in inputs])
    return tuple(key), inputs


def extend_key(  # noqa: C901, PLR0912  one branch for each kind of value
    registry: TensorRegistry,
    values: Iterable[Any],
    key: list[object],
    inputs: list[Argument],
) -> bool:
    """Append what stands for ``values``, and their tensors; False if one cannot be."""
    for value in values:
        kind = type(value)
        if kind is Tensor or kind is nn.Parameter:
            seen = registry.find(value)
            geometry = seen[2] if seen is not None else registry.geometry_of(value)
            if not geometry.is_servable:
                return False
            if value.requires_grad and is_grad_enabled():
                return False
            key.append(geometry)
            inputs.append((value, -1 if seen is None else seen[0], geometry))
        elif kind is int or value is None:
            key.append(value)
        elif kind is float or kind is complex:
            key.append(plain_float(value))
        elif kind in PLAIN:
            key.append(kind)
            key.append(value)
        elif kind is slice:
            key.append(kind)
            bounds = (value.start, value.stop, value.step)
            if not extend_key(registry, bounds, key, inputs):
                return False
        elif kind in SEQUENCES:
            key.append((kind, len(value)))
            if not extend_key(registry, value, key, inputs):
                return False
        else:
            return False
    return True
