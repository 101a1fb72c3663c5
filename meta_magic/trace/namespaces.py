"""Where each operator stands: the modules around it, as a path."""

from collections import Counter
from collections.abc import Sequence
from itertools import accumulate, chain, count
from typing import TYPE_CHECKING, TypeAlias

from meta_magic.trace.calls import ModuleCall, OpCall
from meta_magic.trace.modules import ModuleNode

if TYPE_CHECKING:
    from meta_magic.trace.trace import Trace

__all__ = ["Namespaces"]

Step: TypeAlias = tuple[str, ModuleNode | None]
"""A name in a path, and the module that it names; None where that is gone."""


class Namespaces:
    """The paths of a trace's operators, such as ``forward/model/layers/0``.

    They begin with the phase, where there are several; what is of none is forward's.
    What the same caller calls again has the number of the call behind its name; modules
    that are called alike have one of their own.

    Attributes:
        node_by_place: The modules, by root and fqn.
    """

    def __init__(self, trace: "Trace") -> None:
        phases = {call.phase for call in trace.ops}
        self._other = "forward" if "forward" in phases else "other"
        self._has_phases = len(phases - {"other"} | {self._other}) > 1
        self._trees = trace.modules
        self.node_by_place = {
            (root, node.fqn): node
            for root, tree in enumerate(trace.modules)
            for node in tree.walk()
        }
        self._module_by_path: dict[str, ModuleNode] = {}
        self._n_calls: Counter[object] = Counter()
        self._calls: list[tuple[ModuleCall, str]] = []
        for call in trace.module_calls:
            self._calls.append((call, self._find_path(call)))

    def of(self, call: OpCall) -> str:
        """Return the path of an operator; "" outside of all."""
        path = ""
        if call.module_call is not None:
            _, path = self._calls[call.module_call]
        elif call.root is not None and call.module is not None:
            path = self._join("", self._list_steps(call.root, call.module))
        phase = self._other if call.phase == "other" else call.phase
        return "/".join(filter(None, [phase if self._has_phases else "", path]))

    def find_module(self, path: str) -> ModuleNode | None:
        """Return the module that a path means; None if it means none."""
        inside = path.partition("/")[2] if self._has_phases else path
        return self._module_by_path.get(inside)

    def _find_path(self, call: ModuleCall) -> str:
        above, start = (None, "") if call.parent is None else self._calls[call.parent]
        if call.root is None or call.module is None:
            steps: Sequence[Step] = [(call.class_name.rpartition(".")[2], None)]
        else:
            steps = self._list_steps(call.root, call.module)
        if above is not None and above.root == call.root:
            fqns = [node and node.fqn for _, node in steps[:-1]]
            if above.module in fqns:
                steps = steps[fqns.index(above.module) + 1 :]
        key = (call.parent, call.root, call.module, call.class_name)
        self._n_calls[key] += 1
        if self._n_calls[key] > 1:
            name, node = steps[-1]
            steps = [*steps[:-1], (f"{name} (call {self._n_calls[key]})", node)]
        return self._join(start, steps)

    def _list_steps(self, root: int, fqn: str) -> list[Step]:
        """Return the way from a root to a module below it."""
        names = fqn.split(".") if fqn else []
        tree = self._trees[root]
        fqns = ["", *accumulate(names, "{}.{}".format)]
        nodes = (self.node_by_place.get((root, fqn)) for fqn in fqns)
        first = tree.name or tree.class_name.rpartition(".")[2]
        return [*zip([first, *names], nodes, strict=True)]

    def _join(self, start: str, steps: Sequence[Step]) -> str:
        """Return the path, and note what each part of it means."""
        path = start
        for name, node in steps:
            path = "/".join(filter(None, [path, name.replace("/", "_")]))
            if node is not None:
                path = self._tell_apart(path, node)
        return path

    def _tell_apart(self, path: str, node: ModuleNode) -> str:
        """Return the path of a module, with a number if it is another's already."""
        numbered = (f"{path} ({number})" for number in count(2))
        tried = chain([path], numbered)
        return next(
            p for p in tried if self._module_by_path.setdefault(p, node) is node
        )
