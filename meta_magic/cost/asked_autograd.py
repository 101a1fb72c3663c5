"""Which of its operands autograd saves when an operator is called: it is asked."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import Tensor

from meta_magic.torch_private.snapshot import WithoutModes
from meta_magic.torch_private.tensor_internals import address_of_storage
from meta_magic.trace.signature import (
    NAN,
    NEGATIVE_NAN,
    Geometry,
    OpaqueArgument,
    TensorArgument,
)

if TYPE_CHECKING:
    from meta_magic.trace.signature import Signature

__all__ = ["find_saved_slots"]

ADDMM: Final = "aten.addmm.default"
"""Known: torch's kernel on meta imports sympy, and a recording never runs it."""


def find_saved_slots(signature: "Signature", needed: Sequence[bool]) -> list[int]:
    """Return which tensors autograd saves of a call, by calling it on meta.

    Args:
        signature: What is called.
        needed: Of each input whether its gradient is.

    Returns:
        Numbers of inputs, and of outputs after them; none of what cannot be called.
    """
    if signature.op == ADDMM:
        return [slot for slot, other in ((1, 2), (2, 1)) if needed[other]]
    saved: list[Tensor] = []
    with WithoutModes(), torch.inference_mode(mode=False), torch.enable_grad():
        try:
            inputs = [*map(make_input, signature.inputs, needed)]
            with torch.autograd.graph.saved_tensors_hooks(saved.append, drop):
                returned = call(signature, inputs)
        except (
            RuntimeError,
            TypeError,
            ValueError,
            AttributeError,
            NotImplementedError,
        ):
            return []  # it is of a library that is gone, or has no kernel for meta
        outputs = tensors_in(returned)
        kept = {address_of_storage(t.untyped_storage()) for t in saved}
        met = [address_of_storage(t.untyped_storage()) for t in (*inputs, *outputs)]
    return [slot for slot, address in enumerate(met) if address in kept]


def drop(_: object) -> Tensor:
    """Return what is never asked for: nothing goes back through the call."""
    raise NotImplementedError


def tensors_in(returned: object) -> list[Tensor]:
    """Return the tensors that an operator returned, in order."""
    parts = returned if isinstance(returned, (tuple, list)) else (returned,)
    return [part for part in parts if isinstance(part, Tensor)]


def make_input(geometry: Geometry, is_needed: bool) -> Tensor:  # noqa: FBT001  of a map
    """Return a tensor on meta that is as an input was, on a storage of its own."""
    if geometry.stride is None:
        raise TypeError(f"a tensor of {geometry.layout} is made of others")
    leaf = torch.empty_strided(
        geometry.shape, geometry.stride, dtype=geometry.dtype, device="meta"
    )
    can_have = geometry.dtype.is_floating_point or geometry.dtype.is_complex
    # Not itself: a leaf is not to be written.
    return leaf.requires_grad_().view_as(leaf) if is_needed and can_have else leaf


def call(signature: "Signature", inputs: Sequence[Tensor]) -> Any:
    """Call an operator on other tensors."""
    namespace, name, overload = signature.op.split(".")
    operator = getattr(getattr(getattr(torch.ops, namespace), name), overload)
    arguments = {key: fill(value, inputs) for key, value in signature.arguments}
    return operator(**arguments)


def fill(value: object, inputs: Sequence[Tensor]) -> object:
    """Return an argument with tensors in their places."""
    if isinstance(value, TensorArgument):
        return inputs[value.index]
    if isinstance(value, tuple):
        return [fill(item, inputs) for item in value]
    if isinstance(value, OpaqueArgument):
        return {NAN: float("nan"), NEGATIVE_NAN: -float("nan")}.get(value)
    return value
