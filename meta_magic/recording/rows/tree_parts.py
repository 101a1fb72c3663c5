"""Module trees from their parts, however deep they are."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final, TypeAlias

from meta_magic.trace.modules import ModuleNode

__all__ = ["NO_CALLS", "Part", "add_calls", "assemble"]

NO_CALLS: Final = (None, 0)

Part: TypeAlias = tuple[ModuleNode, int]
"""A node without its children, and the index of its parent."""


def add_calls(
    root: ModuleNode, calls_by_fqn: Mapping[str, tuple[int | None, int]]
) -> ModuleNode:
    """Return a tree with the calls of all its modules."""
    parts: list[Part] = []
    stack = [(root, 0)]
    while stack:
        node, parent = stack.pop()
        stack += [(child, len(parts)) for child in reversed(node.children)]
        first_call, n_calls = calls_by_fqn.get(node.fqn, NO_CALLS)
        node = replace(node, n_calls=n_calls, first_call=first_call)
        parts.append((node, parent))
    return assemble(parts)


def assemble(parts: Sequence[Part]) -> ModuleNode:
    """Return the root of a tree, however deep it is.

    Args:
        parts: Each node without its children, and the index of its parent; parents
            first.
    """
    children: list[list[ModuleNode]] = [[] for _ in parts]
    for index in range(len(parts) - 1, -1, -1):
        (node, parent), below = parts[index], children[index]
        if below:
            node = replace(node, children=tuple(below[::-1]))
        children[parent].append(node)
    return node
