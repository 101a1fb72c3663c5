"""Which storages modules, optimizers and autograd use for what: only they know."""

import threading
from array import array
from collections.abc import Iterable
from itertools import chain
from typing import Any, Self

import torch
from torch.nn.modules.module import register_module_buffer_registration_hook
from torch.optim.optimizer import register_optimizer_step_post_hook

from meta_magic.recording.identities.tensors import TensorRegistry
from meta_magic.recording.rows.module_calls import ModuleCallRecorder
from meta_magic.torch_private.autograd import variable_of
from meta_magic.torch_private.interrupts import unbroken
from meta_magic.torch_private.modes import DisableTorchFunction
from meta_magic.trace.program_facts import StorageFacts

__all__ = ["StorageRoles"]


class StorageRoles:
    """Context manager that hears of buffers and steps; nodes are told to it.

    Args:
        registry: Numbers of storages.
    """

    def __init__(self, registry: TensorRegistry) -> None:
        self._registry = registry
        self._accumulated = array("I")
        self._buffers: set[int] = set()
        self._states: set[int] = set()
        self._optimized: set[int] = set()
        self._assigned: set[int] = set()
        self._handles: list[Any] = []
        self._thread = 0

    def __enter__(self) -> Self:
        self._thread = threading.get_ident()
        self._handles += [
            register_module_buffer_registration_hook(self._on_buffer),
            register_optimizer_step_post_hook(self._after_step),
        ]
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

    def _on_buffer(self, _module: object, _name: str, value: object) -> None:
        if threading.get_ident() == self._thread:
            with DisableTorchFunction():
                self._buffers.update(self._registry.find_storages([value]))

    @unbroken
    def _after_step(self, optimizer: torch.optim.Optimizer, *_: object) -> None:
        if threading.get_ident() != self._thread:
            return
        find = self._registry.find_storages
        stepped = [p for group in optimizer.param_groups for p in group["params"]]
        with DisableTorchFunction():
            self._optimized.update(find(stepped))
            self._assigned.update(find([getattr(p, "grad", None) for p in stepped]))
            self._states.update(find(list_states(optimizer)))

    def build(self, calls: ModuleCallRecorder, nodes: Iterable[int]) -> StorageFacts:
        """Return all that is known.

        Args:
            calls: Knows the parameters registered, and what was called again.
            nodes: The calls for which autograd made a node.
        """
        pairs = iter(self._accumulated)
        parameters = {storage for _, _, storage in calls.registered}
        return StorageFacts(
            sizes=tuple(self._registry.sizes),
            on_meta=tuple(sorted(self._registry.aside)),
            parameters=tuple(sorted(parameters)),
            buffers=tuple(sorted(self._buffers)),
            states=tuple(sorted(self._states)),
            optimized=tuple(sorted(self._optimized)),
            accumulated=tuple(zip(pairs, pairs, strict=True)),
            assigned=tuple(sorted(self._assigned)),
            differentiated=array("I", sorted(nodes)).tobytes(),
            repeated=tuple(calls.while_in_backward),
        )


def list_states(optimizer: torch.optim.Optimizer) -> list[object]:
    """Return what an optimizer keeps of its parameters, numbers among it."""
    held: list[object] = []
    for state in optimizer.state.values():
        held += state.values() if isinstance(state, dict) else (state,)
    lists = [value for value in held if value.__class__ is list]
    return [*held, *chain(*lists)]  # as LBFGS keeps its last steps
