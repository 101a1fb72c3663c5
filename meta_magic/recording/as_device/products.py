"""Differentiate products of elements as the CPU does, which looks for zeros.

Without this the gradient of ``x.prod()`` would be another in the last bits: under a
mode torch multiplies all other elements, on the CPU it divides the product by each. The
formulas are those of ``prod_backward`` in ``FunctionsManual.cpp`` of torch 2.13. Read
:func:`multiply` first.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from meta_magic.errors import MissingValueError
from meta_magic.torch_private.autograd import name_nodes
from meta_magic.torch_private.dispatcher import DispatchKey, run_kernel
from meta_magic.torch_private.modes import functorch_interpreter

aten = torch.ops.aten


def multiply(_: object, a: Tensor, **given: Any) -> Any:
    """Return the product of all elements."""
    return _differentiate(_Product, aten.prod.default, a, (), given)


def multiply_along(
    _: object,
    a: Tensor,
    dim: int,
    keepdim: bool = False,  # noqa: FBT001, FBT002  as in the schema
    **given: Any,
) -> Any:
    """Return products of the elements along a dimension."""
    return _differentiate(_Products, aten.prod.dim_int, a, (dim, keepdim), given)


def _differentiate(
    kind: Any, operator: Any, a: Tensor, where: Any, given: dict[str, Any]
) -> Any:
    is_wanted = torch.is_grad_enabled() and a.requires_grad
    is_plain = functorch_interpreter() is None and type(a) in (
        Tensor,
        torch.nn.Parameter,
    )
    if not (is_wanted and is_plain and a.ndim) or is_dual(a):
        return NotImplemented
    return kind.apply(operator, a, where, given)


def is_dual(a: Tensor) -> bool:
    """Whether a tensor has a tangent of forward-mode differentiation."""
    return forward_ad.unpack_dual(a).tangent is not None


class _AnyProduct(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, operator: Any, a: Tensor, where: Any, given: Any) -> Tensor:
        made: Tensor = run_kernel(operator, DispatchKey.Autograd, (a, *where), given)
        ctx.save_for_backward(a, made)
        ctx.where = where
        return made


@name_nodes("ProdBackward0")
class _Product(_AnyProduct):
    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        a, made = ctx.saved_tensors
        a = a.to(grad.dtype)
        try:
            n_zeros = (a == 0).nonzero().shape[0]
        except MissingValueError:
            n_zeros = 1
        if n_zeros == 0:
            found = grad * (made / a).conj()
        elif n_zeros > 1 and not torch.is_grad_enabled():
            found = torch.zeros_like(a, memory_format=torch.contiguous_format)
        else:
            found = multiply_others(grad, a.contiguous().view(-1), 0).view_as(a)
        return None, found, None, None


@name_nodes("ProdBackward1")
class _Products(_AnyProduct):
    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        a, made = ctx.saved_tensors
        dim, is_kept = ctx.where
        a, dim = a.to(grad.dtype), dim % a.ndim
        if not is_kept:
            grad, made = grad.unsqueeze(dim), made.unsqueeze(dim)
        try:
            n_zeros = (a == 0).sum(dim, keepdim=True).sum().item()
        except MissingValueError:
            n_zeros = 1
        if n_zeros == 0:
            found = grad * (made / a).conj()
        else:
            found = multiply_others(grad, a, dim)
        return None, found, None, None


def multiply_others(grad: Tensor, a: Tensor, dim: int) -> Tensor:
    """Return a gradient times the product of all other elements, without dividing."""
    if not a.numel():
        return grad.expand_as(a)
    if a.shape[dim] == 1:
        return grad
    shape = [*a.shape]
    shape[dim] = 1
    ones = torch.ones(shape, dtype=grad.dtype, device=grad.device)
    before = torch.cat([ones, a.narrow(dim, 0, a.shape[dim] - 1)], dim).cumprod(dim)
    after = a.narrow(dim, 1, a.shape[dim] - 1).flip(dim)
    after = torch.cat([ones, after], dim).cumprod(dim).flip(dim)
    return grad * (before * after).conj()
