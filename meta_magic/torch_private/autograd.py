"""What autograd knows: the running node, its number, the hooks of a tensor."""

from collections.abc import Callable
from operator import attrgetter
from typing import Any, Final, TypeAlias

import torch
from torch import Tensor

# Without it backward operators cannot be told from forward ones.
from torch._C import _current_autograd_node as current_autograd_node

# Without it a backward operator cannot be tied to its forward operator.
from torch._C._autograd import _get_sequence_nr as next_sequence_number

__all__ = [
    "DIFFERENTIATING",
    "Hooks",
    "current_autograd_node",
    "go_on_from",
    "mark_graph_lost",
    "name_nodes",
    "next_sequence_number",
    "read_hooks",
    "release_retained",
    "sequence_number_of",
    "set_hooks",
    "variable_of",
]

DIFFERENTIATING: Final = torch.autograd.graph._engine_run_backward.__code__
"""What runs a backward pass. Without it one that raised in there is of forward."""

Hooks: TypeAlias = tuple[dict[Any, Any] | None, dict[Any, Any] | None]
"""On the gradient of a tensor, and after its accumulation."""

sequence_number_of: Final = attrgetter("_sequence_nr")
"""Return what gives a node its number when called; without it, as above."""


def variable_of(node: Any) -> Tensor | None:
    """Return the tensor whose gradient a node puts in its place; None of others."""
    return getattr(node, "variable", None)


def release_retained(tensor: Tensor) -> Tensor:
    """Take a tensor that retains its gradient out of its graph; return its history.

    The weak reference to it stands in the node that made it, and moves to that of a
    write. Without what keeps its count of writes, a backward would miss what it saved.
    """
    with torch.autograd.grad_mode._unsafe_preserve_version_counter(tensor):
        with torch.enable_grad():
            history = tensor.clone()
            tensor.add_(0)
        tensor.detach_()
    return history


def go_on_from(history: Tensor, tensor: Tensor) -> Tensor:
    """Return a tensor on the storage of one that was released, with its history.

    What was computed from that one before goes past it. Without what keeps the count of
    writes, a backward would miss what it saved.
    """
    made = tensor.detach()
    with (
        torch.autograd.grad_mode._unsafe_preserve_version_counter(tensor),
        torch.enable_grad(),
    ):
        return made.copy_(history)


class GraphOfMeta(torch.autograd.Function):
    """Stands for a graph that was recorded on meta, and has no values."""

    @staticmethod
    def forward(ctx: Any, _anchor: Tensor, tensor: Tensor) -> Tensor:
        """Return the tensor itself."""
        ctx.mark_dirty(tensor)
        return tensor

    @staticmethod
    def backward(_ctx: Any, *_: Tensor) -> Any:
        """Refuse to go on."""
        raise RuntimeError(GRAPH_LOST)


GRAPH_LOST: Final = (
    "no backward pass goes through this tensor: its graph was recorded on meta, and "
    "materialize made its value alone real. Compute it again from the real tensors"
)


def mark_graph_lost(tensor: Tensor) -> None:
    """Give a tensor a history through which no backward pass goes.

    Without what keeps its count of writes, it would count one more.
    """
    with (
        torch.autograd.grad_mode._unsafe_preserve_version_counter(tensor),
        torch.enable_grad(),
    ):
        apply: Callable[..., object] = GraphOfMeta.apply
        apply(torch.empty(0, requires_grad=True), tensor)


def name_nodes(name: str) -> Callable[[type[Any]], type[Any]]:
    """Return a decorator that gives the nodes of a custom function a name.

    Without it a tensor shows another history than torch's own, in its text, too.
    """

    def decorate(function: type[Any]) -> type[Any]:
        function._backward_cls.__name__ = name
        return function

    return decorate


def read_hooks(tensor: Tensor) -> Hooks:
    """Return the hooks on a tensor's gradient, and those after its accumulation.

    Without the two names a materialized parameter loses its hooks.
    """
    return tensor._backward_hooks, tensor._post_accumulate_grad_hooks


def set_hooks(tensor: Tensor, hooks: Hooks) -> None:
    """Give a tensor those hooks that :func:`read_hooks` returned and that there are."""
    on_gradient, after_accumulation = hooks
    if on_gradient is not None:
        tensor._backward_hooks = on_gradient
    if after_accumulation is not None:
        tensor._post_accumulate_grad_hooks = after_accumulation
