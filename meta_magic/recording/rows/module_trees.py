"""Describe the module trees of a recording: live modules to records.

The modules view of a report is made of them. Read :func:`find_trees` first.
"""

import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import repeat
from typing import Any, Final, NamedTuple, TypeAlias

from torch import nn

from meta_magic.recording.identities.live_versions import read_version
from meta_magic.recording.identities.tensors import TensorRegistry
from meta_magic.recording.rows.module_settings import ModuleSettings
from meta_magic.recording.rows.tree_tensors import HeldTensors, own_tensors
from meta_magic.torch_private.modes import DisableTorchFunction
from meta_magic.torch_private.module_internals import (
    children_of,
    is_made,
    moves_itself,
    walk_modules,
)
from meta_magic.torch_private.tensor_internals import is_wrapper
from meta_magic.trace.modules import ModuleClass, ModuleNode


class ModuleNumbers:
    """A number for each module, and weak references to those that are live."""

    def __init__(self) -> None:
        self.class_names: list[str] = []
        self._known_by_id: dict[int, tuple[int, weakref.ref[nn.Module]]] = {}

    def of(self, module: nn.Module) -> int:
        """Return the number of ``module``, from 0 in order of first sight."""
        known = self._known_by_id.get(id(module))
        if known is not None:
            if known[1]() is module:
                return known[0]
            del self._known_by_id[
                id(module)
            ]  # so that they are in the order of numbers
        number = len(self.class_names)
        self.class_names.append(type(module).__qualname__)
        # No callback: one written in Python would swallow an interrupt.
        self._known_by_id[id(module)] = (number, weakref.ref(module))
        return number

    def live(self) -> list[tuple[int, nn.Module]]:
        """Return number and module of all live modules, in order."""
        known = list(self._known_by_id.values())
        return [(n, module) for n, ref in known if (module := ref()) is not None]

    def close(self) -> None:
        """Drop all modules."""
        self._known_by_id.clear()


NO_CALLS: Final = (None, 0)

SETTERS: Final[Mapping[str, Callable[[ModuleNode, Any], None]]] = {
    field.name: getattr(ModuleNode, field.name).__set__ for field in fields(ModuleNode)
}
"""Sets a field of a node, although the node is frozen."""


def add_calls(
    root: ModuleNode, calls_by_fqn: Mapping[str, tuple[int | None, int]]
) -> ModuleNode:
    """Return a tree with the calls of all its modules."""
    nodes: list[ModuleNode] = []
    parents: list[int] = []
    stack = [(root, 0)]
    while stack:
        node, parent = stack.pop()
        stack += [(child, len(nodes)) for child in reversed(node.children)]
        nodes.append(node)
        parents.append(parent)
    calls = [calls_by_fqn.get(node.fqn, NO_CALLS) for node in nodes]
    columns: dict[str, Iterable[object]] = {
        name: [getattr(node, name) for node in nodes] for name in SETTERS
    }
    columns["first_call"], columns["n_calls"] = zip(*calls, strict=True)
    del columns["children"]
    return build_tree(parents, columns)


def build_tree(
    parents: Sequence[int], columns: Mapping[str, Iterable[object]]
) -> ModuleNode:
    """Return the root of a tree, however deep it is; parents come first.

    Each field of all nodes is set at once: a frozen record sets its own one by one,
    which takes three times as long.
    """
    nodes = [*map(object.__new__, repeat(ModuleNode, len(parents)))]
    for name, values in columns.items():
        deque(map(SETTERS[name], nodes, values), maxlen=0)
    set_children = SETTERS["children"]
    deque(map(set_children, nodes, repeat(())), maxlen=0)
    below: dict[int, list[ModuleNode]] = {}
    for node, parent in zip(nodes[1:], parents[1:], strict=True):
        below.setdefault(parent, []).append(node)
    for index, children in below.items():
        set_children(nodes[index], tuple(children))
    return nodes[0]


CallsByModule: TypeAlias = Mapping[int, tuple[int | None, int]]
"""Index of the first call and number of calls, by module number."""


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

    def with_final_calls(self, calls_by_module: CallsByModule) -> "Tree":
        """Return the tree of a module that is gone, with all of its calls.

        Its versions are dropped: its tensors may have been written since.
        """
        calls_by_fqn = {
            fqn: calls_by_module[number]
            for number, fqn in self.fqn_by_module.items()
            if number in calls_by_module
        }
        node = add_calls(self.node, calls_by_fqn)
        return replace(self, node=node, versions={})


class TreeColumns(NamedTuple):
    """The modules of a tree, once for each path, parents first.

    ``shared`` has the first path of the same module, by index, for all but the first.
    """

    modules: Sequence[nn.Module]
    names: Sequence[str]
    fqns: Sequence[str]
    parents: Sequence[int]
    shared: dict[int, str]


def walk_tree(root: nn.Module) -> TreeColumns:
    """Return the modules of a tree; children are below the first path of a module."""
    rows: list[tuple[nn.Module, str, str, int]] = []
    first_by_id: dict[int, str] = {}
    shared: dict[int, str] = {}
    stack: list[tuple[Iterator[tuple[str, nn.Module | None]], str, int]]
    stack = [(iter([("", root)]), "", 0)]
    while stack:
        held, prefix, parent = stack[-1]
        for name, module in held:
            if module is None:
                continue
            fqn, index = prefix + name, len(rows)
            rows.append((module, name, fqn, parent))
            first = first_by_id.setdefault(id(module), fqn)
            children = children_of(module)
            if first != fqn:
                shared[index] = first
            elif children:
                items = iter([*children.items()])
                stack.append((items, f"{fqn}." if fqn else "", index))
                break
        else:
            stack.pop()
    modules, names, fqns, parents = zip(*rows, strict=True)
    return TreeColumns(modules, names, fqns, parents, shared)


def describe_columns(
    registry: TensorRegistry,
    numbers: ModuleNumbers,
    columns: TreeColumns,
    name: str = "",
    calls: CallsByModule | None = None,
) -> Tree:
    """Return the description of the modules of a tree.

    ``calls`` is None while the recording runs, when no code of the modules may run.
    """
    registry.note_deaths()
    columns = columns._replace(names=(name, *columns.names[1:]))
    found = [*map(numbers.of, columns.modules)]
    fqn_by_module = dict(zip(found, columns.fqns, strict=True))
    for index, fqn in columns.shared.items():
        fqn_by_module[found[index]] = fqn
    at = [*enumerate(columns.modules)]
    if columns.shared:
        at = [pair for pair in at if pair[0] not in columns.shared]
    with DisableTorchFunction():
        settings = [
            *map(ModuleSettings(may_ask=calls is not None).read, columns.modules)
        ]
        held = HeldTensors(registry, at)
        called = [(calls or {}).get(number, NO_CALLS) for number in found]
        node_fields = make_columns(columns, settings, called, held)
        return Tree(
            node=build_tree(columns.parents, node_fields),
            fqn_by_module=fqn_by_module,
            owner_by_storage=held.find_owners(found),
            attributes=[
                (node_fields["class_name"][i], n, s)
                for i, n, s in held.list_attributes()
                if not moves_itself(columns.modules[i])
            ],
            versions=held.read_versions(),
        )


def make_columns(
    columns: TreeColumns,
    settings: list[tuple[str, ModuleClass]],
    called: list[tuple[int | None, int]],
    held: HeldTensors,
) -> dict[str, Sequence[Any]]:
    """Return the fields of the nodes of a tree, but for their children."""
    shared: list[str | None] = [None] * len(called)
    for index, fqn in columns.shared.items():
        settings[index] = "", settings[index][1]
        called[index], shared[index] = NO_CALLS, fqn
    texts, definitions = zip(*settings, strict=True)
    first_calls, n_calls = zip(*called, strict=True)
    tensors, storages = zip(*held.describe(columns.fqns), strict=True)
    return {
        "name": columns.names,
        "fqn": columns.fqns,
        "class_name": [definition.name for definition in definitions],
        "tensors": tensors,
        "n_calls": n_calls,
        "first_call": first_calls,
        "shared_with": shared,
        "settings": texts,
        "storages": storages,
        "definition": definitions,
    }


def read_versions(
    registry: TensorRegistry, root: nn.Module
) -> dict[tuple[int, int], int]:
    """Return how often the tensors of a recording were written.

    The key is the number of the storage, or -1 where the recording has none, and the
    tensor's ``id``.
    """
    versions: dict[tuple[int, int], int] = {}
    with DisableTorchFunction():
        for _, module in walk_modules(root):
            for _, _, tensor in own_tensors(module):
                storage = registry.find_storage(tensor)
                number = -1 if storage is None or is_wrapper(tensor) else storage
                versions[number, id(tensor)] = read_version(tensor)
    return versions


def find_trees(numbers: ModuleNumbers) -> list[TreeColumns]:
    """Return each tree built or called, in order of first sight."""
    live = [module for _, module in numbers.live()]
    if live and is_made(live[0]):  # usually all belong to the tree of the first
        columns = walk_tree(live[0])
        known = set(map(id, columns.modules))
        if known.issuperset(map(id, live)) and "" not in columns.shared.values():
            return [columns]
    return [*map(walk_tree, find_roots(live))]


def find_roots(live: list[nn.Module]) -> list[nn.Module]:
    """Return the module of each tree built or called, in order of first sight.

    A module is a root unless another live one that was seen holds it, or torch's own
    ``__init__`` has not run yet.
    """
    fresh = live
    held: set[int] = set()
    expanded = set(map(id, live))
    while fresh:
        below = list_children(fresh)
        below_ids = set(map(id, below))
        held |= below_ids
        below_ids -= expanded
        fresh = (
            [module for module in below if id(module) in below_ids] if below_ids else []
        )
        expanded |= below_ids
    return [m for m in live if id(m) not in held and is_made(m)]


def find_root(module: nn.Module, live: list[nn.Module]) -> nn.Module:
    """Return the root of the tree of a module: one that no other live one holds."""
    held = set(map(id, list_children(live)))
    seen = set[int]()
    while id(module) in held - seen:  # a module may hold itself
        seen.add(id(module))
        holders = (m for m in live if any(c is module for c in list_children([m])))
        module = next(holders)
    return module


def list_children(modules: Sequence[nn.Module]) -> list[nn.Module]:
    """Return the children of some modules; none before ``Module.__init__``."""
    try:
        tables = [*map(children_of, modules)]
    except AttributeError:
        tables = [*map(children_of, filter(is_made, modules))]
    filled = [table.values() for table in tables if table]
    return [module for modules in filled for module in modules if module is not None]
