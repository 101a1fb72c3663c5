"""Put real tensors in the place of those on meta, which stay the same objects.

The Python object of a tensor is given another tensor below it, so whoever holds it (the
module, an optimizer, a variable) holds the real one. A graph that autograd recorded on
meta keeps the old one: a backward pass from the real one is refused by name.
``torch.utils.swap_tensors`` does the same, and refuses while there is such a graph or
a weak reference; here neither matters, as both go on to mean what they meant. Below
Python torch refuses weak references, too: that of a graph which retains a tensor's
gradient is taken away.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from meta_magic.torch_private.autograd import (
    mark_graph_lost,
    read_hooks,
    release_retained,
    restore_history,
    set_hooks,
)
from meta_magic.torch_private.interrupts import Interrupts
from meta_magic.torch_private.modes import DisableTorchFunction
from meta_magic.torch_private.tensor_internals import is_view, swap_tensor_impl

__all__ = ["Installation", "is_leaf"]


class Installation:
    """Tensors and what to put below them; all or none.

    Args:
        pairs: (tensor on meta, real tensor).
        gradients: (tensor, its gradient), where both are among these.

    Attributes:
        n_installed: How many were in place when it ended, or failed.
    """

    def __init__(
        self,
        pairs: Sequence[tuple[Tensor, Tensor]],
        gradients: Sequence[tuple[Tensor, Tensor]] = (),
    ) -> None:
        self._pairs = pairs
        self._gradients = gradients
        self._done: list[tuple[Tensor, Tensor]] = []
        self._released: list[tuple[Tensor, Tensor]] = []
        self.n_installed = 0

    def install(self) -> None:
        """Put all in place. An interrupt waits, and then takes all out again."""
        with Uninterrupted() as interrupts, DisableTorchFunction(), torch.no_grad():
            try:
                # All of them first: that of a view may be that of what it is one of.
                for tensor, real in self._pairs:
                    if real.is_floating_point() or real.is_complex():
                        take_over_grad(tensor, real)
                for tensor, real in self._pairs:
                    if not is_view(tensor) and tensor.retains_grad:
                        self._released.append((tensor, release_retained(tensor)))
                    swap(tensor, real)
                    self._done.append((tensor, real))
                    self.n_installed += 1
                for tensor, gradient in self._gradients:
                    tensor.grad = gradient
            except BaseException:
                self._undo()
                raise
            if interrupts.pending:
                self._undo()

    def undo(self) -> None:
        """Take all out again."""
        with Uninterrupted(), DisableTorchFunction():
            self._undo()

    def _undo(self) -> None:
        while self._done:
            swap(*self._done.pop())
        while self._released:
            tensor, history = self._released.pop()
            swap(tensor, restore_history(history, tensor))
            tensor.retain_grad()


def take_over_grad(tensor: Tensor, real: Tensor) -> None:
    """Let a real tensor want a gradient as one on meta does."""
    if tensor.requires_grad and not is_leaf(tensor):
        mark_graph_lost(real)
    else:
        real.requires_grad_(tensor.requires_grad)


def is_leaf(tensor: Tensor) -> bool:
    """Whether a tensor is no result of autograd's."""
    try:
        return tensor.is_leaf
    except RuntimeError:  # a view whose base was written, in a way that has no gradient
        return False


def swap(tensor: Tensor, real: Tensor) -> None:
    """Exchange what lies below two tensor objects; hooks stay with the first."""
    hooks = read_hooks(tensor)
    swap_tensor_impl(tensor, real)
    set_hooks(tensor, hooks)


class Uninterrupted:
    """Context manager in which interrupts wait; gives what knows whether one came."""

    def __enter__(self) -> Interrupts:
        self._interrupts = Interrupts()
        self._interrupts.is_held = True
        self._interrupts.own()
        return self._interrupts

    def __exit__(self, *_: object) -> None:
        self._interrupts.give_back()
