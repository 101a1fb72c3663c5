"""Strides that a kernel chooses by those of its arguments: the CPU is asked.

Torch's kernels on meta are written anew, in Python for the most part, and choose
otherwise where an argument is not laid out in rows: with sizes of 1 above all, whose
strides mean nothing, and beside a tensor without dimensions.
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
"""Elements of all arguments up to which an operator is asked, whatever it computes."""

MAX_NUMEL_POINTWISE: Final = 2**22

MAX_KNOWN: Final = 2**14

laid_out_alike: set[object] = set()
"""Calls whose results meta lays out as the CPU, wherever their tensors lie; so many."""


def lay_out_made(func: Any, given: Given, returned: Any) -> Any:
    """Return what an operator returned on meta, laid out as on the CPU.

    An operator of tensors in rows makes others, if there is anything in them.
    """
    for _, seen in given.inputs:
        if not seen[2].is_in_rows:
            break
    else:
        if all(tensor.numel() for tensor in tensors_in(returned)):
            return returned
    return lay_out_alike(func, given.args, given.kwargs, returned)


def lay_out_alike(func: Any, args: Args, kwargs: Kwargs, returned: Any) -> Any:
    """Return what an operator returned on meta, laid out as on the CPU.

    It is asked once for each signature, and only where that takes little; beyond, what
    torch's kernel on meta chose stands.
    """
    made, met = tensors_in(returned), tensors_in(args, kwargs)
    limit = MAX_NUMEL_POINTWISE if is_pointwise(func, made, met) else MAX_NUMEL
    is_small = sum(tensor.numel() for tensor in (*made, *met)) <= limit
    if not is_small or {*map(id, made)} <= {*map(id, met)}:
        return returned
    call = func, describe(args), describe(kwargs)
    if call in laid_out_alike:
        return returned
    asked = ask_cpu(func, args, kwargs)
    laid_out = tensors_in(asked)
    is_alike = list(types_of(laid_out)) == list(types_of(made))
    is_other = [t.stride() for t in laid_out] != [t.stride() for t in made]
    if is_alike and is_other:
        return asked
    if len(laid_out_alike) >= MAX_KNOWN:
        laid_out_alike.clear()
    laid_out_alike.add(call)
    return returned


def take_geometries(returned: Any, real: Any) -> Any:
    """Return what an operator returned on meta, as it returned it on the CPU.

    Strides along one element, which mean nothing, and special tensors are left.
    """
    made, wanted = tensors_in(returned), tensors_in(real)
    is_known = len(made) == len(wanted) and all(map(is_plain, wanted))
    if not is_known or [*map(geometry_of, made)] == [*map(geometry_of, wanted)]:
        return returned
    return put_on_meta(real)


def is_plain(tensor: Tensor) -> bool:
    """Whether meta has tensors like one on the CPU."""
    is_special = tensor.is_conj() or tensor.is_neg() or tensor.is_quantized
    return tensor.layout is torch.strided and not (is_special or tensor.is_nested)


def geometry_of(tensor: Tensor) -> tuple[object, ...]:
    """Return shape, dtype, and strides along more than one element."""
    steps = zip(tensor.shape, tensor.stride(), strict=True)
    return tensor.shape, tensor.dtype, [step for n, step in steps if n > 1]


def describe(value: Any) -> object:
    """Return what decides of an argument how a result is laid out."""
    if isinstance(value, Tensor):
        is_strided = value.layout is torch.strided
        steps = value.stride() if is_strided else value.layout
        return value.shape, steps, value.dtype, value.is_conj(), value.is_neg()
    if isinstance(value, (list, tuple)):
        return tuple(map(describe, value))
    if isinstance(value, dict):
        return tuple(value), describe((*value.values(),))
    return type(value), value


def is_pointwise(func: Any, made: list[Tensor], met: list[Tensor]) -> bool:
    """Whether an operator takes element by element.

    Torch does not say so of the gradients of most activations.
    """
    if torch.Tag.pointwise in func.tags:
        return True
    shapes = {tensor.shape for tensor in (*made, *met)}
    return len(shapes) == 1 and "backward" in str(func)


def types_of(tensors: list[Tensor]) -> Iterator[tuple[object, ...]]:
    """Yield shape, dtype and layout of tensors."""
    for tensor in tensors:
        yield tensor.shape, tensor.dtype, tensor.layout, tensor.device


def lay_out_moved(real: Tensor, tensor: Tensor) -> Tensor:
    """Return the values of a tensor that were asked for on the CPU, laid out as that.

    There it is the tensor itself, whose strides numpy sees; a copy has others where
    elements lie apart.
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
        except RuntimeError:  # elements overlap otherwise than by a stride of 0
            return real
    return made
