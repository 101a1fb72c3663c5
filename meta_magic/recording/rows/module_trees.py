"""Describe module trees: live modules to records."""

from collections import OrderedDict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from types import FunctionType, NoneType
from typing import Final, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from meta_magic.recording.identities.geometries import LiveGeometry
from meta_magic.recording.identities.living_tensors import read_version
from meta_magic.recording.identities.module_numbers import ModuleNumbers
from meta_magic.recording.identities.tensors import TensorRegistry
from meta_magic.recording.rows.module_settings import ModuleSettings
from meta_magic.recording.rows.tree_parts import NO_CALLS, Part, add_calls, assemble
from meta_magic.torch_private.modes import DisableTorchFunction
from meta_magic.torch_private.module_internals import (
    buffers_of,
    children_of,
    names_not_persistent,
    parameters_of,
    walk_modules,
)
from meta_magic.trace.modules import ModuleNode, ModuleTensor

NOT_TENSORS: Final = frozenset(
    {bool, int, float, str, dict, OrderedDict, set, NoneType}
    | {list, tuple, torch.Size, torch.dtype, torch.device, FunctionType}
)
"""Types of most of what a module holds; asking each whether it is a tensor is slow."""

CallsByModule: TypeAlias = Mapping[int, tuple[int | None, int]]
"""Index of the first call and number of calls, by module number."""

__all__ = ["Tree", "describe_tree", "find_roots", "own_tensors", "read_versions"]


@dataclass(slots=True, kw_only=True)
class Tree:
    """A described module tree, and what is known of its modules by number.

    Attributes:
        node: The record of the root.
        fqn_by_module: Name within the root, by module number.
        owner_by_storage: Number of the first module that holds a storage.
        attributes: (class name, attribute, storage) of the tensors that are neither
            parameter nor buffer.
        versions: By storage and ``id``, how often tensors were written in place.
    """

    node: ModuleNode
    fqn_by_module: dict[int, str]
    owner_by_storage: dict[int, int]
    attributes: list[tuple[str, str, int]]
    versions: dict[tuple[int, int], int]

    @property
    def number(self) -> int:
        """Number of the root module: it is described first."""
        return next(iter(self.fqn_by_module))

    def of_the_past(self, calls_by_module: CallsByModule) -> "Tree":
        """Return the tree of a module that is gone, with all of its calls.

        What it held may have been written since.
        """
        calls_by_fqn = {
            fqn: calls_by_module[number]
            for number, fqn in self.fqn_by_module.items()
            if number in calls_by_module
        }
        node = add_calls(self.node, calls_by_fqn)
        return replace(self, node=node, versions={})


def describe_tree(
    registry: TensorRegistry,
    numbers: ModuleNumbers,
    root: nn.Module,
    name: str = "",
    calls: CallsByModule | None = None,
) -> Tree:
    """Return the description of ``root`` and all below it.

    Args:
        registry: Numbers of tensors and storages.
        numbers: Numbers of modules.
        root: The module.
        name: Name of the variable that holds it.
        calls: First call and number of calls of each module, by its number; None
            while the recording goes on, where no code of the modules may run.
    """
    describer = TreeDescriber(registry, numbers, calls)
    registry.note_deaths()
    with DisableTorchFunction():
        node = describer.describe(root, name)
    return Tree(
        node=node,
        fqn_by_module=describer.fqn_by_module,
        owner_by_storage=describer.owner_by_storage,
        attributes=describer.attributes,
        versions=describer.versions,
    )


class TreeDescriber:
    """Walks one module tree; its attributes are those of :class:`Tree`."""

    def __init__(
        self,
        registry: TensorRegistry,
        numbers: ModuleNumbers,
        calls: CallsByModule | None,
    ) -> None:
        self.fqn_by_module: dict[int, str] = {}
        self.owner_by_storage: dict[int, int] = {}
        self.attributes: list[tuple[str, str, int]] = []
        self.versions: dict[tuple[int, int], int] = {}
        self._registry = registry
        self._numbers = numbers
        self._calls = calls or {}
        self._settings = ModuleSettings(may_ask=calls is not None)
        self._fqn_by_tensor: dict[object, str] = {}
        self._record_by_key: dict[object, ModuleTensor] = {}

    def describe(self, root: nn.Module, name: str) -> ModuleNode:
        """Return the record of a module and all below it."""
        parts: list[Part] = []
        stack: list[tuple[nn.Module, str, str, int]] = [(root, name, "", 0)]
        while stack:
            module, name, fqn, parent = stack.pop()
            node, children = self._describe_module(module, name, fqn)
            if children and node.shared_with is None:
                index, prefix = len(parts), f"{fqn}." if fqn else ""
                below = reversed(children.items())
                stack += [(m, n, prefix + n, index) for n, m in below if m is not None]
            parts.append((node, parent))
        return assemble(parts)

    def _describe_module(
        self, module: nn.Module, name: str, fqn: str
    ) -> tuple[ModuleNode, dict[str, nn.Module | None]]:
        """Return the record of a module without its children, and those."""
        number = self._numbers.of(module)
        first = self.fqn_by_module.setdefault(number, fqn)
        prefix = f"{fqn}." if fqn else ""
        is_first = first == fqn
        first_call, n_calls = (
            self._calls.get(number, NO_CALLS) if is_first else NO_CALLS
        )
        settings, definition = self._settings.read(module)
        held = [*self._describe_tensors(module, prefix)] if is_first else []
        node = ModuleNode(
            name=name,
            fqn=fqn,
            class_name=definition.name,
            tensors=tuple([tensor for tensor, _ in held]),
            children=(),
            n_calls=n_calls,
            first_call=first_call,
            shared_with=None if is_first else first,
            settings=settings if is_first else "",
            storages=tuple([storage for _, storage in held]),
            definition=definition,
        )
        return node, children_of(module)

    def _describe_tensors(
        self, module: nn.Module, prefix: str
    ) -> Iterator[tuple[ModuleTensor, int]]:
        """Yield each tensor of a module, and the number of its storage or -1."""
        for name, kind, tensor in own_tensors(module):
            is_persistent = kind == "parameter" or (
                kind == "buffer" and name not in names_not_persistent(module)
            )
            lazy = is_lazy(tensor)
            geometry, tied_to, storage = None, None, -1
            if not lazy:
                place = prefix + name
                geometry, tied_to, storage = self._note(tensor, module, kind, place)
            grad = tensor.requires_grad
            key = (name, kind, is_persistent, geometry or id(tensor), grad, tied_to)
            record = self._record_by_key.get(key)
            if record is None:  # most layers of a model are alike
                record = self._record_by_key[key] = ModuleTensor(
                    name=name,
                    kind=kind,
                    is_persistent=is_persistent,
                    is_lazy=lazy,
                    shape=() if lazy else tuple(tensor.shape),
                    dtype=tensor.dtype,
                    device=tensor.device,
                    requires_grad=grad,
                    tied_to=tied_to,
                    place=None if geometry is None else geometry.place,
                )
            yield record, storage

    def _note(
        self, tensor: Tensor, module: nn.Module, kind: str, fqn: str
    ) -> tuple[LiveGeometry, str | None, int]:
        """Note where a tensor stands.

        Returns:
            Its geometry, where the same tensor stood first if it did, and the number
            of its storage.
        """
        seen = self._registry.read(tensor)
        storage = self._registry.storage_by_tensor[seen[0]]
        self.versions[storage, id(tensor)] = read_version(tensor)
        if kind == "attribute":
            name = fqn.rpartition(".")[2]
            _, definition = self._settings.read(module)
            self.attributes.append((definition.name, name, storage))
        else:
            self.owner_by_storage.setdefault(storage, self._numbers.of(module))
        first = self._fqn_by_tensor.setdefault((storage, seen[2]), fqn)
        return seen[2], None if first == fqn else first, storage


def read_versions(
    registry: TensorRegistry, root: nn.Module
) -> dict[tuple[int, int], int]:
    """Return how often the tensors were written that a recording met.

    By the number of their storage and their ``id``.
    """
    versions: dict[tuple[int, int], int] = {}
    with DisableTorchFunction():
        for _, module in walk_modules(root):
            for _, _, tensor in own_tensors(module):
                storage = registry.find_storage(tensor)
                if storage is not None:
                    versions[storage, id(tensor)] = read_version(tensor)
    return versions


def own_tensors(module: nn.Module) -> Iterator[tuple[str, str, Tensor]]:
    """Yield name, kind and tensor of all that a module holds itself."""
    for name, parameter in parameters_of(module).items():
        if parameter is not None:
            yield name, "parameter", parameter
    for name, buffer in buffers_of(module).items():
        if buffer is not None:
            yield name, "buffer", buffer
    held = module.__dict__
    if NOT_TENSORS.issuperset(map(type, held.values())):
        return
    for name, value in held.items():
        kind = type(value)
        # Not isinstance: a configuration would be asked for its class, slowly.
        if kind not in NOT_TENSORS and issubclass(kind, Tensor):
            yield name, "attribute", value


def find_roots(numbers: ModuleNumbers) -> list[nn.Module]:
    """Return the module of each tree built or called, in order of first sight.

    A module is a root unless another living one that was met holds it, or torch's own
    ``__init__`` has not run yet.
    """
    living = [module for _, module in numbers.living()]
    held: set[int] = set()
    expanded: set[int] = set()
    stack = list(living)
    while stack:
        module = stack.pop()
        if id(module) not in expanded:
            expanded.add(id(module))
            try:
                children = [c for c in children_of(module).values() if c is not None]
            except AttributeError:
                held.add(id(module))  # by nobody: it can hold nothing, and is no tree
                continue
            held.update(map(id, children))
            stack += children
    return [module for module in living if id(module) not in held]
