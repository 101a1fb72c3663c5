"""Give results on meta the strides of the CPU, by asking the CPU.

Without this ``y.stride()`` would be wrong after some calls with arguments that are not
in rows: torch's meta kernels are written in Python, and choose other strides than the
CPU, above all for dimensions of size 1 and beside tensors without dimensions.
Read ``match_cpu_strides`` first.
"""

from collections.abc import Iterator
from typing import Any, Final

import torch
from torch import Tensor

from meta_magic.recording.as_device.cpu_kernels import ask_cpu, put_on_meta
from meta_magic.recording.identities.geometries import span_nbytes
from meta_magic.recording.identities.nested_tensors import tensors_in
from meta_magic.recording.signatures.entries import Args, Given, Kwargs
from meta_magic.torch_private.modes import DisableTorchDispatch, DisableTorchFunction

MAX_NUMEL: Final = 2**16
"""Limit on the elements of arguments and results of an operator that is asked."""

MAX_NUMEL_POINTWISE: Final = 2**22

MAX_KNOWN: Final = 2**14

matching_calls: set[object] = set()
"""Calls to whose results meta gives the strides of the CPU, at most ``MAX_KNOWN``."""


def match_cpu_if_needed(func: Any, given: Given, returned: Any) -> Any:
    """Return a result on meta with the strides of the CPU, if they may differ.

    If all arguments are in rows, the results are, unless they are empty.
    """
    for _, seen in given.inputs:
        if not seen[2].is_in_rows:
            break
    else:
        if all(tensor.numel() for tensor in tensors_in(returned)):
            return returned
    return match_cpu_strides(func, given.args, given.kwargs, returned)


def match_cpu_strides(func: Any, args: Args, kwargs: Kwargs, returned: Any) -> Any:
    """Return a result on meta with the strides of the CPU.

    The CPU is asked once for each signature, and only for small calls; a large call
    keeps the strides of meta.
    """
    made, given = tensors_in(returned), tensors_in(args, kwargs)
    limit = MAX_NUMEL_POINTWISE if is_pointwise(func, made, given) else MAX_NUMEL
    is_small = sum(tensor.numel() for tensor in (*made, *given)) <= limit
    if not is_small or {*map(id, made)} <= {*map(id, given)}:
        return returned
    call = func, describe(args), describe(kwargs)
    if call in matching_calls:
        return returned
    asked = ask_cpu(func, args, kwargs)
    laid_out = tensors_in(asked)
    is_alike = list(types_of(laid_out)) == list(types_of(made))
    is_other = [t.stride() for t in laid_out] != [t.stride() for t in made]
    if is_alike and is_other:
        return asked
    if len(matching_calls) >= MAX_KNOWN:
        matching_calls.clear()
    matching_calls.add(call)
    return returned


def take_geometries(returned: Any, real: Any) -> Any:
    """Return a result on meta with the geometry of the result on the CPU.

    Strides of dimensions of size 1, and special tensors, stay as they are.
    """
    made, wanted = tensors_in(returned), tensors_in(real)
    is_known = len(made) == len(wanted) and all(map(is_plain, wanted))
    if not is_known or [*map(geometry_of, made)] == [*map(geometry_of, wanted)]:
        return returned
    return put_on_meta(real)


def is_plain(tensor: Tensor) -> bool:
    """Whether meta can have a tensor like one on the CPU."""
    is_special = tensor.is_conj() or tensor.is_neg() or tensor.is_quantized
    return tensor.layout is torch.strided and not (is_special or tensor.is_nested)


def geometry_of(tensor: Tensor) -> tuple[object, ...]:
    """Return shape, dtype, and strides of dimensions with more than one element."""
    steps = zip(tensor.shape, tensor.stride(), strict=True)
    return tensor.shape, tensor.dtype, [step for n, step in steps if n > 1]


def describe(value: Any) -> object:
    """Return the metadata of an argument that decides the strides of a result."""
    if isinstance(value, Tensor):
        is_strided = value.layout is torch.strided
        steps = value.stride() if is_strided else value.layout
        return value.shape, steps, value.dtype, value.is_conj(), value.is_neg()
    if isinstance(value, (list, tuple)):
        return tuple(map(describe, value))
    if isinstance(value, dict):
        return tuple(value), describe((*value.values(),))
    return type(value), value


def is_pointwise(func: Any, made: list[Tensor], given: list[Tensor]) -> bool:
    """Whether an operator is elementwise.

    The gradients of most activations are, and have no tag that says so.
    """
    if torch.Tag.pointwise in func.tags:
        return True
    shapes = {tensor.shape for tensor in (*made, *given)}
    return len(shapes) == 1 and "backward" in str(func)


def types_of(tensors: list[Tensor]) -> Iterator[tuple[object, ...]]:
    """Yield shape, dtype and layout of tensors."""
    for tensor in tensors:
        yield tensor.shape, tensor.dtype, tensor.layout, tensor.device


def copy_with_strides(real: Tensor, tensor: Tensor) -> Tensor:
    """Return the values of a tensor with the strides of the tensor on meta.

    On the CPU ``x.cpu()`` is ``x``, and numpy sees its strides; a copy has others if
    there are gaps between elements.
    """
    if real.dtype != tensor.dtype or real.stride() == tensor.stride():
        return real
    once = tuple(slice(1 if step == 0 else None) for step in tensor.stride())
    with DisableTorchFunction(), DisableTorchDispatch():
        flat = torch.zeros(span_nbytes(tensor), dtype=torch.uint8, device="cpu")
        made = flat.view(real.dtype)[tensor.storage_offset() :]
        made = made.as_strided(real.shape, tensor.stride())
        try:
            made[once].copy_(real[once])
        except RuntimeError:  # elements overlap, and not by a stride of 0
            return real
    return made
