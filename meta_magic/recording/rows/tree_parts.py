"""Module trees from the columns of their nodes, however deep they are."""

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields
from itertools import repeat
from typing import Any, Final

from meta_magic.trace.modules import ModuleNode

__all__ = ["NO_CALLS", "add_calls", "build_tree"]

NO_CALLS: Final = (None, 0)

SETTERS: Final[Mapping[str, Callable[[ModuleNode, Any], None]]] = {
    field.name: getattr(ModuleNode, field.name).__set__ for field in fields(ModuleNode)
}
"""What sets a field of a node, if that is frozen, too."""


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
    """Return the root of a tree, however deep it is.

    Each field of all nodes is set at once: a frozen record sets its own one by one,
    which takes three times as long.

    Args:
        parents: The index of the parent of each node; parents first.
        columns: The values of all fields, by their name, but of ``children``.
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
