"""The operators of a trace as a graph: edges, networkx, and paths of modules.

``trace.to_networkx()`` is ``build_network``; ``trace.to_model_explorer()`` reads
``find_edges`` and ``Namespaces``. Read ``find_edges`` first: a tensor that is written
in place is a new value, and so are all tensors on its storage.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain, count
from typing import TYPE_CHECKING, Final, TypeAlias

from meta_magic.trace.calls import ModuleCall, OpCall, TensorMetadata
from meta_magic.trace.modules import ModuleNode

if TYPE_CHECKING:
    from networkx import MultiDiGraph

    from meta_magic.trace.trace import Trace

OUTSIDE: Final = (-1, 0)
"""Source and output of a tensor that no operator made."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Edge:
    """A tensor on its way from one operator to another.

    Attributes:
        source: Index of the operator that made the tensor or last wrote its storage;
            None if the tensor came from outside of the recording.
        output: Its index in :func:`list_made` of the source; 0 from outside.
        target: Index of the operator that reads it.
        input: Its index in the inputs of the target.
    """

    source: int | None
    output: int
    target: int
    input: int
    tensor: TensorMetadata


def list_made(call: OpCall) -> list[TensorMetadata]:
    """Return the tensors that a call returned, then those that it wrote only."""
    returned = {tensor.tensor_id for tensor in call.outputs}
    written = (call.inputs[i] for i in call.writes)
    return [*call.outputs, *(t for t in written if t.tensor_id not in returned)]


def find_edges(calls: Iterable[OpCall]) -> Iterator[Edge]:
    """Yield an edge for each tensor that each call reads, in order."""
    makers: dict[int, tuple[int, int]] = {}
    writers: dict[int, tuple[int, int]] = {}
    for call in calls:
        for number, tensor in enumerate(call.inputs):
            made = makers.get(tensor.tensor_id, OUTSIDE)
            written = writers.get(tensor.storage_id, OUTSIDE)
            source, output = written if written[0] > made[0] else made
            yield Edge(
                source=None if source < 0 else source,
                output=output,
                target=call.index,
                input=number,
                tensor=tensor,
            )
        storages = {call.inputs[i].storage_id for i in call.writes}
        for number, tensor in enumerate(list_made(call)):
            makers[tensor.tensor_id] = call.index, number
            # A parameter is a tensor that no operator made, on a storage that one did.
            if tensor.storage_id in storages or tensor.storage_id not in writers:
                writers[tensor.storage_id] = call.index, number


FIELDS: Final = (
    *("op", "function", "module", "root", "module_call", "phase", "line", "forward"),
    *("flops", "nbytes_read", "nbytes_written", "raised"),
)
"""Fields of a call that its node has, where they are not None."""


def build_network(calls: Sequence[OpCall]) -> "MultiDiGraph":
    """Return operators as nodes, and as edges the tensors that they read."""
    from networkx import MultiDiGraph  # noqa: PLC0415  0.2 s, on first use

    graph = MultiDiGraph()
    for call in calls:
        values = {name: getattr(call, name) for name in FIELDS}
        known = {name: value for name, value in values.items() if value is not None}
        graph.add_node(call.index, kind="op", **known)
    for edge in find_edges(calls):
        read = edge.tensor
        tensor = {
            "tensor_id": read.tensor_id,
            "storage_id": read.storage_id,
            "shape": read.shape,
            "dtype": str(read.dtype).removeprefix("torch."),
            "nbytes": read.nbytes,
        }
        outside = f"tensor {read.tensor_id}"
        if edge.source is None:
            graph.add_node(outside, kind="tensor", **tensor)
        source = outside if edge.source is None else edge.source
        ends = {"output": edge.output, "input": edge.input}
        graph.add_edge(source, edge.target, **tensor, **ends)
    return graph


PathStep: TypeAlias = tuple[str, ModuleNode | None]
"""A name in a path, and its module; None where that is gone."""


class Namespaces:
    """The paths of a trace's operators, such as ``forward/model/layers/0``.

    A path begins with the phase, where there are several; operators of no phase count
    as forward. A module that the same caller calls again gets the number of the call in
    its name; so do different modules with one name.
    """

    def __init__(self, trace: "Trace") -> None:
        phases = {call.phase for call in trace.ops}
        self._other = "forward" if "forward" in phases else "other"
        self._has_phases = len(phases - {"other"} | {self._other}) > 1
        self._trees = trace.modules
        self.node_by_name = {
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
        """Return the module of a path; None if there is none."""
        inside = path.partition("/")[2] if self._has_phases else path
        return self._module_by_path.get(inside)

    def _find_path(self, call: ModuleCall) -> str:
        above, start = (None, "") if call.parent is None else self._calls[call.parent]
        if call.root is None or call.module is None:
            steps: Sequence[PathStep] = [(call.class_name.rpartition(".")[2], None)]
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

    def _list_steps(self, root: int, fqn: str) -> list[PathStep]:
        """Return the way from a root to a module below it."""
        names = fqn.split(".") if fqn else []
        tree = self._trees[root]
        fqns = ["", *accumulate(names, "{}.{}".format)]
        nodes = (self.node_by_name.get((root, fqn)) for fqn in fqns)
        first = tree.name or tree.class_name.rpartition(".")[2]
        return [*zip([first, *names], nodes, strict=True)]

    def _join(self, start: str, steps: Sequence[PathStep]) -> str:
        """Return the path, and remember the module of each part of it."""
        path = start
        for name, node in steps:
            path = "/".join(filter(None, [path, name.replace("/", "_")]))
            if node is not None:
                path = self._make_unique(path, node)
        return path

    def _make_unique(self, path: str, node: ModuleNode) -> str:
        """Return the path of a module, with a number if another module has it."""
        numbered = (f"{path} ({number})" for number in count(2))
        tried = chain([path], numbered)
        return next(
            p for p in tried if self._module_by_path.setdefault(p, node) is node
        )
