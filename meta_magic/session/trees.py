"""Find the module trees of a recording, and describe them when it ends.

A tree's root is a module that the block built or called. The report names it by its
variable, ``model``, or by the way to it, such as ``config["models"][0]``.
"""

import weakref
from collections import deque
from collections.abc import Mapping
from itertools import islice
from typing import Final

from torch import nn

from meta_magic.recording.rows.module_trees import Tree, describe_columns, find_trees
from meta_magic.recording.rows.writers import Writers
from meta_magic.session.operand_names import IPYTHONS, MAX_HELD, walk_held
from meta_magic.torch_private.module_internals import is_made, parameters_of

MAX_DEPTH: Final = 3  # brackets and dots in a name

MAX_SEEN: Final = 10_000  # values that are looked at in all


class TreeFinder:
    """Knows which modules a recording built or called."""

    def __init__(self, written: Writers, namespace: Mapping[str, object]) -> None:
        self._registry = written.registry
        self._numbers = written.numbers
        self._calls = written.calls
        self._roles = written.rows.roles
        self._before = {id(m): weakref.ref(m) for m in modules_in(namespace).values()}

    def describe(self, namespace: Mapping[str, object]) -> list[Tree]:
        """Return the trees of live modules as they are, of dead ones as they were."""
        modules = modules_in(namespace)
        names = {id(module): name for name, module in reversed(modules.items())}
        for module in modules.values():
            before = self._before.get(id(module))
            if before is None or before() is not module:
                self._numbers.of(module)  # one without parameters has no number yet
        calls = self._calls.calls_by_module()
        found = find_trees(self._numbers)
        # Those of plain parameters are known from the nodes of autograd.
        held = [parameters_of(m).values() for part in found for m in part.modules]
        given = [p for part in held for p in part if p is not None]
        plain = [p for p in given if p.__class__ is not nn.Parameter]
        self._roles.note_gradients(plain)
        roots = [columns.modules[0] for columns in found]
        unnamed = {id(root) for root in roots} - names.keys()
        if unnamed:
            names |= find_names(namespace, unnamed)
        by, known = (
            (self._registry, self._numbers),
            [names.get(id(r), "") for r in roots],
        )
        pairs = zip(found, known, strict=True)
        trees = [describe_columns(*by, part, name, calls) for part, name in pairs]
        early = self._calls.early_trees
        described = set[int]().union(*(tree.fqn_by_module for tree in trees if early))
        for tree in early.values():
            # Without its root: a part that was also called alone is no second tree.
            described.update(tree.fqn_by_module.keys() - {tree.number})
        gone = (tree for number, tree in early.items() if number not in described)
        trees += [tree.with_final_calls(calls) for tree in gone]
        if len(trees) > 1:
            trees.sort(key=lambda tree: min(tree.fqn_by_module))
        return trees


def modules_in(namespace: Mapping[str, object]) -> dict[str, nn.Module]:
    """Return the variables that hold modules, but for IPython's own such as ``_``."""
    return {
        name: value
        for name, value in list(namespace.items())
        # Not isinstance first: it would ask the ``__class__`` of any object there.
        if issubclass(type(value), nn.Module) and not name.startswith("_")
        if isinstance(value, nn.Module) and is_made(value)
    }


def find_names(namespace: Mapping[str, object], wanted: set[int]) -> dict[int, str]:
    """Return the shortest way to write each module, by ``id``, if one is found."""
    names: dict[int, str] = {}
    items = [(n, v) for n, v in [*namespace.items()] if not n.startswith("_")]
    variables = [(name, value, 0) for name, value in items if name not in IPYTHONS]
    to_read = deque(variables)
    seen = {id(value) for _, value, _ in variables}
    while to_read and len(names) < len(wanted) and len(seen) < MAX_SEEN:
        name, value, depth = to_read.popleft()
        for path, held in islice(walk_held(value), MAX_HELD):
            if id(held) in seen:
                continue
            seen.add(id(held))
            if id(held) in wanted:
                names[id(held)] = name + path
            elif depth + 1 < MAX_DEPTH:
                to_read.append((name + path, held, depth + 1))
    return names
