"""How parameters are called in what is advised."""

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from meta_magic.trace.modules import ModuleNode, ModuleTensor

__all__ = ["name_by_storage", "shorten"]

MAX_NAMED: Final = 3
"""Names that are written out."""


def list_parameters(root: "ModuleNode") -> "Iterator[tuple[str, int, ModuleTensor]]":
    """Yield name, storage and record of each parameter of a tree that wants gradients.

    One that stands in two places comes twice.
    """
    for node in root.walk():
        for tensor, storage in zip(node.tensors, node.storages, strict=False):
            is_meant = tensor.kind == "parameter" and tensor.requires_grad
            if is_meant and storage >= 0 and not tensor.is_lazy:
                name = ".".join(filter(None, (root.name, node.fqn, tensor.name)))
                yield name, storage, tensor


def name_by_storage(roots: "Iterable[ModuleNode]") -> dict[int, str]:
    """Return the first name of the parameters on each storage."""
    names: dict[int, str] = {}
    for root in roots:
        for name, storage, _ in list_parameters(root):
            names.setdefault(storage, name)
    return names


def shorten(names: Sequence[str]) -> str:
    """Return names as they stand in a sentence, the first ones of many."""
    n_more = len(names) - MAX_NAMED
    if n_more <= 1:
        return ", ".join(names[:-1]) + (" and " if names[1:] else "") + names[-1]
    return f"{', '.join(names[:MAX_NAMED])} and {n_more:,} more"
