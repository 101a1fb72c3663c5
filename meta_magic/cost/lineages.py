"""How modules are called in a cost, and which modules each lies in."""

from collections import Counter
from collections.abc import Iterator, Sequence

from meta_magic.trace.modules import ModuleNode
from meta_magic.trace.program import Program

__all__ = ["Lineage", "build_lineages"]

Lineage = tuple[str, ...]
"""The names of a module and of those around it, the outermost last; () if unknown."""


def build_lineages(
    program: Program, modules: Sequence[ModuleNode]
) -> tuple[Lineage, ...]:
    """Return the lineage of each of a program's modules.

    A module's name is that of its root, as it is written, and its own within, such as
    ``model.layers.0``. A root without a name is called by its class, and the second
    of a name has a number.
    """
    roots = [*name_roots(modules)]
    return tuple(
        () if root is None or fqn is None else (*name_upwards(roots[root], fqn),)
        for root, fqn, _ in program.modules
    )


def name_roots(modules: Sequence[ModuleNode]) -> Iterator[str]:
    """Yield a name for each root that no other has."""
    seen = Counter[str]()
    for root in modules:
        name = root.name or root.class_name
        seen[name] += 1
        yield name if seen[name] == 1 else f"{name} ({seen[name]})"


def name_upwards(root: str, fqn: str) -> Iterator[str]:
    """Yield the names of a module and of all around it."""
    parts = fqn.split(".") if fqn else []
    for n in range(len(parts), 0, -1):
        yield f"{root}.{'.'.join(parts[:n])}"
    yield root
