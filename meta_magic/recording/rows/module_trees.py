"""Describe module trees: live modules to records."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeAlias

from torch import nn

from meta_magic.recording.identities.living_tensors import read_version
from meta_magic.recording.identities.module_numbers import ModuleNumbers
from meta_magic.recording.identities.tensors import TensorRegistry
from meta_magic.recording.rows.module_settings import ModuleSettings
from meta_magic.recording.rows.tree_parts import NO_CALLS, add_calls, build_tree
from meta_magic.recording.rows.tree_tensors import HeldTensors, own_tensors
from meta_magic.torch_private.modes import DisableTorchFunction
from meta_magic.torch_private.module_internals import (
    children_of,
    is_made,
    walk_modules,
)
from meta_magic.trace.modules import ModuleNode

CallsByModule: TypeAlias = Mapping[int, tuple[int | None, int]]
"""Index of the first call and number of calls, by module number."""

__all__ = ["Tree", "describe_tree", "find_roots", "read_versions"]


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
    registry.note_deaths()
    with DisableTorchFunction():
        places = walk_tree(numbers, root, name)
        return describe_places(registry, places, calls)


class Places(NamedTuple):
    """The places of a tree at which modules stand, parents first.

    Attributes:
        modules: The module at each.
        names: Its name within its parent.
        fqns: Its name within the root.
        parents: Index of the place of its parent.
        numbers: Number of the module.
        fqn_by_module: The first place of each module, by its number.
        shared: The first place of the same module, by index, for all but the first.
    """

    modules: Sequence[nn.Module]
    names: Sequence[str]
    fqns: Sequence[str]
    parents: Sequence[int]
    numbers: Sequence[int]
    fqn_by_module: dict[int, str]
    shared: dict[int, str]


def walk_tree(numbers: ModuleNumbers, root: nn.Module, name: str) -> Places:
    """Return the places of a tree; what a module holds is below the first of its own.

    Args:
        numbers: Numbers of modules.
        root: The root of the tree.
        name: Its name.
    """
    number_of = numbers.of
    rows: list[tuple[nn.Module, str, str, int, int]] = []
    fqn_by_module: dict[int, str] = {}
    shared: dict[int, str] = {}
    stack: list[tuple[Iterator[tuple[str, nn.Module | None]], str, int]]
    stack = [(iter([(name, root)]), "", 0)]
    while stack:
        held, prefix, parent = stack[-1]
        for below, module in held:
            if module is None:
                continue
            fqn = prefix + below if rows else ""
            number, index = number_of(module), len(rows)
            rows.append((module, below, fqn, parent, number))
            first = fqn_by_module.setdefault(number, fqn)
            children = children_of(module)
            if first != fqn:
                shared[index] = first
            elif children:
                items = iter([*children.items()])
                stack.append((items, f"{fqn}." if fqn else "", index))
                break
        else:
            stack.pop()
    modules, names, fqns, parents, found = zip(*rows, strict=True)
    return Places(modules, names, fqns, parents, found, fqn_by_module, shared)


def describe_places(
    registry: TensorRegistry, places: Places, calls: CallsByModule | None
) -> Tree:
    """Return the description of the modules at the places of a tree."""
    read = ModuleSettings(may_ask=calls is not None).read
    settings = [*map(read, places.modules)]
    called = [(calls or {}).get(number, NO_CALLS) for number in places.numbers]
    shared: list[str | None] = [None] * len(called)
    for index, fqn in places.shared.items():
        settings[index] = "", settings[index][1]
        called[index], shared[index] = NO_CALLS, fqn
    at = [*enumerate(places.modules)]
    if places.shared:
        at = [place for place in at if place[0] not in places.shared]
    held = HeldTensors(registry, at)
    texts, definitions = zip(*settings, strict=True)
    class_names = [definition.name for definition in definitions]
    first_calls, n_calls = zip(*called, strict=True)
    tensors, storages = zip(*held.describe(places.fqns), strict=True)
    columns = {
        "name": places.names,
        "fqn": places.fqns,
        "class_name": class_names,
        "tensors": tensors,
        "n_calls": n_calls,
        "first_call": first_calls,
        "shared_with": shared,
        "settings": texts,
        "storages": storages,
        "definition": definitions,
    }
    return Tree(
        node=build_tree(places.parents, columns),
        fqn_by_module=places.fqn_by_module,
        owner_by_storage=held.find_owners(places.numbers),
        attributes=[(class_names[i], n, s) for i, n, s in held.list_attributes()],
        versions=held.read_versions(),
    )


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


def find_roots(numbers: ModuleNumbers) -> list[nn.Module]:
    """Return the module of each tree built or called, in order of first sight.

    A module is a root unless another living one that was met holds it, or torch's own
    ``__init__`` has not run yet.
    """
    fresh = living = [module for _, module in numbers.living()]
    held: set[int] = set()
    expanded = set(map(id, living))
    while fresh:
        below = list_children(fresh)
        met = set(map(id, below))
        held |= met
        met -= expanded
        fresh = [module for module in below if id(module) in met] if met else []
        expanded |= met
    return [m for m in living if id(m) not in held and is_made(m)]


def list_children(modules: Sequence[nn.Module]) -> list[nn.Module]:
    """Return what some modules hold; one that is not made holds nothing."""
    try:
        tables = [*map(children_of, modules)]
    except AttributeError:
        tables = [*map(children_of, filter(is_made, modules))]
    filled = [table.values() for table in tables if table]
    return [module for modules in filled for module in modules if module is not None]
