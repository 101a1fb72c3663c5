"""Real meets meta: refuse the operators that would return uninitialized memory.

In torch 2.13 ``mm``, ``addmm``, ``bmm``, bias-less ``linear`` and ``conv2d``,
``embedding``, indexing, ``gather`` and others, given a real and a meta tensor, return
a real tensor of whatever lay in memory, without a word; ``real.add_(meta)`` does
nothing. The rule: an operator that reads a meta tensor and returns a real one is an
error, unless it only takes the other's shape, as ``zeros_like(meta, device="cpu")``.
"""

import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

from torch import Tensor, nn

from meta_magic.errors import MixedDeviceError
from meta_magic.recording.places import OWN, TORCH
from meta_magic.recording.signatures import LiveCall
from meta_magic.trace.units import format_shape

if TYPE_CHECKING:
    from types import FrameType

__all__ = ["check_devices", "explain_mix"]

SHAPE_ONLY: Final = (
    *("empty_like", "zeros_like", "ones_like", "full_like", "rand_like", "randn_like"),
    *("randint_like", "new_empty", "new_empty_strided", "new_zeros", "new_ones"),
    "new_full",
)


def check_devices(op: str, call: LiveCall) -> None:
    """Raise if the call read a meta tensor and returned a real one.

    Raises:
        MixedDeviceError: names the operator, both tensors and the way out.
    """
    if not is_mixed(op, call):
        return
    metas = [t for t, seen in call.inputs if seen[2].is_meta]
    reals = [t for t, seen in (*call.inputs, *call.outputs) if not seen[2].is_meta]
    raise MixedDeviceError(
        f"{op} met a real and a meta tensor: {describe(reals[0])} and "
        f"{describe(metas[0])}. torch would return uninitialized memory. "
        f"Make both meta (x.to('meta')) or both real (with torch.device('cpu'): ...)."
    )


def explain_mix(error: Exception, tensors: Sequence[Tensor]) -> None:
    """Add to an operator's own error which tensors were real and which were meta."""
    metas = [t for t in tensors if t.is_meta]
    reals = [t for t in tensors if not t.is_meta]
    if metas and reals and isinstance(error, (RuntimeError, NotImplementedError)):
        error.add_note(
            f"meta_magic: {describe(reals[0])} is real, {describe(metas[0])} is meta."
        )


def is_mixed(op: str, call: LiveCall) -> bool:
    """Whether the result lies in real memory although data it needs does not exist."""
    if all(seen[2].is_meta for _, seen in call.outputs):
        return False
    if all(not seen[2].is_meta for _, seen in call.inputs):
        return False
    return op.split(".")[1] not in SHAPE_ONLY


def describe(tensor: Tensor) -> str:
    """Return a tensor in words, with its name where a running frame has one."""
    name = next(find_names(tensor), None)
    dtype = str(tensor.dtype).removeprefix("torch.")
    shown = f"{tensor.device} {dtype} {format_shape(tensor.shape)}"
    return f"{name} ({shown})" if name else f"a tensor ({shown})"


def find_names(tensor: Tensor) -> Iterator[str]:
    """Yield the names by which running code knows a tensor, innermost first."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        if not file.startswith(OWN):
            yield from variables_in(frame.f_locals, tensor)
        if file.startswith(f"{TORCH}/nn/modules") or not file.startswith(OWN):
            yield from parameters_in(frame.f_locals.get("self"), tensor)
        frame = frame.f_back


def variables_in(names: dict[str, object], tensor: Tensor) -> Iterator[str]:
    """Yield the variables of one scope that hold ``tensor``."""
    return (repr(name) for name, value in list(names.items()) if value is tensor)


def parameters_in(module: object, tensor: Tensor) -> Iterator[str]:
    """Yield the parameters of a running module that are ``tensor``."""
    if isinstance(module, nn.Module):
        for name, value in module._parameters.items():
            if value is tensor:
                yield f"'self.{name}' of {type(module).__name__}"
