"""The sizes that a block's text names: positive integers behind names that it reads."""

import ast
from collections import Counter
from collections.abc import Iterator

from meta_magic.trace.rerun import Rerun
from meta_magic.trials.blocks import find_bound, parse_block
from meta_magic.trials.sizes import SCOPES

__all__ = ["as_size", "list_sizes"]


def list_sizes(rerun: Rerun) -> dict[str, int]:
    """Return the positive integers that a block reads by name, without running it.

    Those that it does not bind are as they were before it; of those that it binds only
    the ones are known that it binds to a number as such, and once.

    Raises:
        TrialError: Its text is not known, or cannot stand by itself.
    """
    block = parse_block(rerun)
    names = [node for node in ast.walk(block) if isinstance(node, ast.Name)]
    n_bound = Counter(n.id for n in names if isinstance(n.ctx, ast.Store))
    known = {n: former.kept for n, former in rerun.before.items() if former.is_plain}
    for name in find_bound(block):
        known.pop(name, None)
    known |= {name: n for name, n in list_assigned(block) if n_bound[name] == 1}
    read = {node.id for node in names if isinstance(node.ctx, ast.Load)}
    return {name: n for name, n in known.items() if name in read and as_size(n)}


def list_assigned(block: ast.AST) -> Iterator[tuple[str, object]]:
    """Yield names that are assigned a constant outside of functions, and that."""
    for node in ast.iter_child_nodes(block):
        if isinstance(node, ast.Assign):
            for target in node.targets:
                yield from pair(target, node.value)
        elif not isinstance(node, SCOPES):
            yield from list_assigned(node)


def pair(target: ast.expr, value: ast.expr) -> Iterator[tuple[str, object]]:
    """Yield the names of a target that a constant is assigned to, and that."""
    if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
        for one, other in zip(target.elts, value.elts, strict=False):
            yield from pair(one, other)
    elif isinstance(target, ast.Name) and isinstance(value, ast.Constant):
        yield target.id, value.value


def as_size(value: object) -> int | None:
    """Return a value if it is a positive integer, else None."""
    return value if type(value) is int and value > 0 else None
