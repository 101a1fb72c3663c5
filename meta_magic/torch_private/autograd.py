"""Autograd: the running node, sequence numbers, the hooks and the graph of a tensor.

Each comment says what breaks without the names below it.
"""

from collections.abc import Callable
from operator import attrgetter
from typing import Any, Final, TypeAlias

import torch
from torch import Tensor
from torch.autograd.grad_mode import _unsafe_preserve_version_counter as keeping_version

# Backward operators cannot be distinguished from forward operators.
current_autograd_node = torch._C._current_autograd_node

# A backward operator cannot be tied to its forward operator.
next_sequence_number = torch._C._autograd._get_sequence_nr
sequence_number_of: Final = attrgetter("_sequence_nr")

# Runs a backward pass: an error in it is reported as one of the forward pass.
DIFFERENTIATING: Final = torch.autograd.graph._engine_run_backward.__code__

Hooks: TypeAlias = tuple[dict[Any, Any] | None, dict[Any, Any] | None]
"""On the gradient of a tensor, and after its accumulation."""


def variable_of(node: Any) -> Tensor | None:
    """Return the tensor whose gradient a node accumulates; None of other nodes."""
    return getattr(node, "variable", None)


def release_retained(tensor: Tensor) -> Tensor:
    """Take a tensor that retains its gradient out of its graph; return its history.

    The node that made the tensor holds a weak reference to it, which moves to the node
    of the write here. Without ``keeping_version``, a backward pass that saved the
    tensor would refuse it as overwritten.
    """
    with keeping_version(tensor):
        with torch.enable_grad():
            history = tensor.clone()
            tensor.add_(0)
        tensor.detach_()
    return history


def restore_history(history: Tensor, tensor: Tensor) -> Tensor:
    """Return a tensor on the storage of a released one, with its history."""
    made = tensor.detach()
    with keeping_version(tensor), torch.enable_grad():
        return made.copy_(history)


class GraphOfMeta(torch.autograd.Function):
    """The history of a tensor whose graph was recorded on meta, without values."""

    @staticmethod
    def forward(ctx: Any, _anchor: Tensor, tensor: Tensor) -> Tensor:
        """Return the tensor itself."""
        ctx.mark_dirty(tensor)
        return tensor

    @staticmethod
    def backward(_ctx: Any, *_: Tensor) -> Any:
        """Refuse the backward pass."""
        raise RuntimeError(
            "no backward pass goes through this tensor: its graph was recorded on "
            "meta, and materialize made its value alone real. Compute it again from "
            "the real tensors"
        )


def mark_graph_lost(tensor: Tensor) -> None:
    """Give a tensor a history through which no backward pass goes."""
    with keeping_version(tensor), torch.enable_grad():
        apply: Callable[..., object] = GraphOfMeta.apply
        apply(torch.empty(0, requires_grad=True), tensor)


def name_nodes(name: str) -> Callable[[type[Any]], type[Any]]:
    """Return a decorator that names the nodes of a custom function.

    Without it a tensor shows another ``grad_fn`` than torch's own.
    """

    def decorate(function: type[Any]) -> type[Any]:
        function._backward_cls.__name__ = name
        return function

    return decorate


def read_hooks(tensor: Tensor) -> Hooks:
    """Return the hooks on a tensor's gradient, and those after its accumulation.

    Without them a materialized parameter loses its hooks.
    """
    return tensor._backward_hooks, tensor._post_accumulate_grad_hooks


def set_hooks(tensor: Tensor, hooks: Hooks) -> None:
    """Give a tensor the hooks that :func:`read_hooks` returned, where there are any."""
    on_gradient, after_accumulation = hooks
    if on_gradient is not None:
        tensor._backward_hooks = on_gradient
    if after_accumulation is not None:
        tensor._post_accumulate_grad_hooks = after_accumulation
