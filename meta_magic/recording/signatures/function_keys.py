"""Serve whole calls of torch's functions: the signature cache, one floor higher.

Without its kernel an operator still costs the way through torch's dispatcher, and some
functions make many operators: attention on meta makes 27. A pure function called again
with the same metadata makes the same operators, so its rows are written again with new
numbers, and only the tensors that it returns are made.

This holds only while nothing else looks on or changes what the function does: no
gradient is recorded for it, and no other mode, transform, autocast or tracer is active.
What a function did is learnt by watching it once; see :mod:`templates`.
"""

from collections.abc import Callable, Iterable, Iterator
from types import BuiltinFunctionType, MethodDescriptorType
from typing import Any, Final

import torch
from torch import Tensor
from torch.nn import Parameter, functional

from meta_magic.recording.identities.tensors import UNSEEN, TensorRegistry
from meta_magic.recording.signatures.arguments import Args, Kwargs
from meta_magic.recording.signatures.entries import PLAIN, plain_float, sharing
from meta_magic.recording.signatures.templates import Operands
from meta_magic.torch_private.autograd import current_autograd_node
from meta_magic.torch_private.dispatcher import attention_priorities
from meta_magic.torch_private.modes import (
    device_constructors,
    forward_mode_level,
    functorch_interpreter,
    is_any_autocast_enabled,
    is_deterministic,
    n_dispatch_modes,
    tracing_state,
)
from meta_magic.torch_private.module_internals import (
    is_of_torch,
    native_functions,
    replaced_natives,
)

__all__ = ["build_key", "is_alone", "is_pure"]

WRITTEN: Final[dict[Any, tuple[dict[str, Any], str]]] = {
    functional.silu: (vars(native_functions), "silu"),
    functional.dropout: (replaced_natives, "dropout"),
} | {
    getattr(functional, name): (vars(torch), name)
    for name in ("relu", "layer_norm", "rms_norm", "group_norm", "embedding")
}
"""Functions in Python that neither warn nor keep state, and where each looks for what
it calls: somebody may have put something else there."""

PYTHON_FUNCTIONS: Final = {f: where for f, where in WRITTEN.items() if is_of_torch(f)}
"""Those of them that are torch's own: somebody may have put others in their place."""

CASTS: Final = frozenset[Any](
    {Tensor.float, Tensor.double, Tensor.half, Tensor.bfloat16}
    | {Tensor.long, Tensor.int, Tensor.bool}
)
"""Methods that are operators of another name."""

ATTENTION: Final = functional.scaled_dot_product_attention
SWITCHES: Final[tuple[Callable[[], bool], ...]] = (
    torch.backends.cuda.flash_sdp_enabled,
    torch.backends.cuda.mem_efficient_sdp_enabled,
    torch.backends.cuda.cudnn_sdp_enabled,
    torch.backends.cuda.math_sdp_enabled,
)
"""They decide which kernel attention is."""

BEYOND_ARGUMENTS: Final = frozenset({ATTENTION, *PYTHON_FUNCTIONS})
"""Functions whose operators are not decided by their arguments alone."""

default_dtype = torch.get_default_dtype
is_grad_enabled = torch.is_grad_enabled
is_inference_mode = torch.is_inference_mode_enabled

SEQUENCES: Final = frozenset({list, tuple, torch.Size})


def is_pure(function: Any) -> bool:
    """Whether a function's operators depend on nothing but its arguments' metadata."""
    if function in PYTHON_FUNCTIONS or function in CASTS:
        return True
    if function is Tensor.__getitem__ or function is Tensor.__setitem__:
        return True
    name = getattr(function, "__name__", "_")
    if (
        function is Tensor.item
        or name.endswith("_")
        or function in device_constructors()
    ):
        return False
    if isinstance(function, BuiltinFunctionType):
        homes = functional, torch
        is_public = any(getattr(home, name, None) is function for home in homes)
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
    operands: Operands,
) -> tuple[object, ...] | None:
    """Return what decides a call's operators, and gather its tensors in ``operands``.

    These are taken for what was last seen at their addresses, as far as storage and
    offset tell. None if the call cannot be served: a gradient is recorded for it, or an
    argument is neither a strided meta tensor nor a plain value.
    """
    key: list[object] = [
        function,
        default_dtype(),
        is_deterministic(),
        is_inference_mode(),
    ]
    if function in BEYOND_ARGUMENTS:
        key += read_beyond(function)
    try:
        is_servable = extend_key(registry, args, key, operands)
        if is_servable and kwargs:
            key += kwargs
            is_servable = extend_key(registry, kwargs.values(), key, operands)
    except (RuntimeError, ValueError):  # one has no storage
        return None
    if not is_servable:
        return None
    if len(operands.tensors) > 1 and not operands.are_two_apart():
        key += sharing(operands.tensors)
    return tuple(key)


def read_beyond(function: Any) -> Iterator[object]:
    """Yield what decides the operators of a function beside its arguments."""
    if function is ATTENTION:
        yield from attention_priorities()
        yield from (is_on() for is_on in SWITCHES)
    else:
        names, name = PYTHON_FUNCTIONS[function]
        yield names.get(name)


def extend_key(
    registry: TensorRegistry, values: Iterable[Any], key: list[Any], operands: Operands
) -> bool:
    """Append what stands for ``values``, and their tensors; False if one cannot be."""
    known, is_graph = registry.seen_by_id.get, is_grad_enabled()
    for value in values:
        kind = type(value)
        if kind is Tensor or kind is Parameter:
            seen = known(id(value)) or (UNSEEN, None, registry.geometry_of(value))
            if is_graph and value.requires_grad:
                return False
            number, ref, geometry = seen
            if ref is not None and not (
                ref() is value.untyped_storage()
                and ref.address
                and value.storage_offset() == geometry.offset
            ):  # perhaps another is there now
                number, _, geometry = seen = registry.see_again(value)
            if not geometry.is_servable:
                return False
            key.append(geometry)
            operands.tensors.append(value)
            operands.seens.append(seen)
            operands.numbers.append(number)
        elif kind is int or value is None:
            key.append(value)
        elif kind is float or kind is complex:
            key.append(plain_float(value))
        elif kind in PLAIN:
            key += kind, value
        elif kind is slice or kind in SEQUENCES:
            items = (value.start, value.stop, value.step) if kind is slice else value
            key.append((kind, len(items)))
            if not extend_key(registry, items, key, operands):
                return False
        else:
            return False
    return True
