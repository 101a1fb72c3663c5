"""Fold a module tree into the lines that are shown of it."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from meta_magic.trace.module_columns import Run, tree_columns
from meta_magic.trace.modules import ModuleNode
from meta_magic.trace.sequences import ModuleCalls

__all__ = ["TreeLine", "build_tree"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeLine:
    """One shown line: a module, or a run of identical siblings.

    Attributes:
        values: Of the columns of the tree, in their order, not yet formatted.
        children: The lines below it; those of a run stand once.
    """

    values: tuple[object, ...]
    children: tuple["TreeLine", ...]


def build_tree(root: ModuleNode, calls: ModuleCalls) -> TreeLine:
    """Return the folded lines of a module tree.

    Args:
        root: The tree.
        calls: The module calls of the same trace, for the shapes in and out.
    """
    return build_line([root], calls, () if root.places else None)


def build_line(
    nodes: Sequence[ModuleNode], calls: ModuleCalls, above: tuple[str, ...] | None
) -> TreeLine:
    """Return the line of a module, or of a run of identical ones.

    Args:
        nodes: The modules.
        calls: The module calls of the same trace.
        above: Where the tensors of the module around them lie; None if the code names
            no device.
    """
    run = Run(nodes=nodes, calls=calls, places_above=above)
    places = None if above is None else nodes[0].places
    runs = split_runs(nodes[0].children)
    return TreeLine(
        values=tuple(column.tell_run(run) for column in tree_columns()),
        children=tuple(build_line(below, calls, places) for below in runs),
    )


def split_runs(nodes: Sequence[ModuleNode]) -> Iterator[list[ModuleNode]]:
    """Group neighbours that are numbered and alike in all but their names."""
    for key, run in groupby(nodes, key=likeness):
        if isinstance(key, str):
            yield from ([node] for node in run)
        else:
            yield list(run)


def likeness(node: ModuleNode) -> object:
    """Return what two numbered siblings share when they are built alike."""
    return structure(node) if node.name.isdecimal() else node.fqn


def structure(node: ModuleNode) -> tuple[object, ...]:
    """Return the class, tensors and children of a module without their names."""
    tensors = tuple(
        (t.name, t.kind, t.shape, t.dtype, t.place, t.requires_grad, t.tied_to is None)
        for t in node.tensors
    )
    children = tuple((child.name, structure(child)) for child in node.children)
    return (node.class_name, tensors, children, node.n_calls, node.shared_with)
