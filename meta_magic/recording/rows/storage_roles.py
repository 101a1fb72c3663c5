"""Which storages autograd and optimizers use for what: only they know."""

from array import array
from collections.abc import Iterable
from typing import Any, Self

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from meta_magic.recording.identities.tensors import TensorRegistry
from meta_magic.torch_private.autograd import variable_of
from meta_magic.torch_private.interrupts import unbroken
from meta_magic.torch_private.modes import DisableTorchFunction
from meta_magic.trace.storage_facts import StorageFacts

__all__ = ["StorageRoles"]


class StorageRoles:
    """Context manager that hears of optimizers; autograd's rows are told to it.

    Args:
        registry: Numbers of storages.
    """

    def __init__(self, registry: TensorRegistry) -> None:
        self._registry = registry
        self._accumulated = array("I")
        self._states: set[int] = set()
        self._optimized: set[int] = set()
        self._assigned: set[int] = set()
        self._handles: list[Any] = []

    def __enter__(self) -> Self:
        self._handles.append(register_optimizer_step_post_hook(self._after_step))
        return self

    def __exit__(self, *_: object) -> None:
        while self._handles:
            self._handles.pop().remove()

    def note_node(self, call: int, node: object) -> None:
        """Note a call that autograd makes, of no forward operator.

        Args:
            call: Its number.
            node: What makes it; if that puts a gradient in its place, it is known.
        """
        tensor = variable_of(node)
        storage = None if tensor is None else self._registry.find_storage(tensor)
        if storage is not None:
            self._accumulated.extend((call, storage))

    @unbroken
    def _after_step(self, optimizer: torch.optim.Optimizer, *_: object) -> None:
        find = self._registry.find_storages
        stepped = [p for group in optimizer.param_groups for p in group["params"]]
        held = [
            value
            for state in optimizer.state.values()
            for value in state.values()
            if type(value) is not int
        ]
        with DisableTorchFunction():
            gradients = [p.grad for p in stepped]
            self._optimized.update(find(stepped))
            self._assigned.update(find(gradients))
            self._states.update(find(held))

    def build(
        self,
        parameters: Iterable[int],
        differentiated: Iterable[int],
        repeated: Iterable[int],
    ) -> StorageFacts:
        """Return all that is known.

        Args:
            parameters: Storages of parameters that were registered.
            differentiated: The calls for which autograd made a node.
            repeated: The module calls that began inside of a backward pass.
        """
        pairs = iter(self._accumulated)
        return StorageFacts(
            sizes=tuple(self._registry.sizes),
            parameters=tuple(sorted(set(parameters))),
            states=tuple(sorted(self._states)),
            optimized=tuple(sorted(self._optimized)),
            accumulated=tuple(zip(pairs, pairs, strict=True)),
            assigned=tuple(sorted(self._assigned)),
            differentiated=array("I", sorted(differentiated)).tobytes(),
            repeated=tuple(repeated),
        )
