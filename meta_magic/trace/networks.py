"""A trace as a graph of networkx."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from meta_magic.trace.calls import OpCall, TensorMetadata
from meta_magic.trace.edges import find_edges

if TYPE_CHECKING:
    from networkx import MultiDiGraph

__all__ = ["build_network"]

FIELDS: Final = (
    *("op", "function", "module", "root", "module_call", "phase", "line", "forward"),
    *("flops", "nbytes_read", "nbytes_written", "raised"),
)
"""What the node of an operator tells of its call, unless that is None."""


def build_network(calls: Sequence[OpCall]) -> "MultiDiGraph":
    """Return operators as nodes, and as edges the tensors that they read."""
    from networkx import MultiDiGraph  # noqa: PLC0415  0.2 s, on first use

    graph = MultiDiGraph()
    for call in calls:
        values = {name: getattr(call, name) for name in FIELDS}
        told = {name: value for name, value in values.items() if value is not None}
        graph.add_node(call.index, kind="op", **told)
    for edge in find_edges(calls):
        tensor = describe_tensor(edge.tensor)
        outside = f"tensor {edge.tensor.tensor_id}"
        if edge.source is None:
            graph.add_node(outside, kind="tensor", **tensor)
        source = outside if edge.source is None else edge.source
        ends = {"output": edge.output, "input": edge.input}
        graph.add_edge(source, edge.target, **tensor, **ends)
    return graph


def describe_tensor(tensor: TensorMetadata) -> dict[str, Any]:
    """Return what an edge, or a tensor from outside, tells."""
    return {
        "tensor_id": tensor.tensor_id,
        "storage_id": tensor.storage_id,
        "shape": tensor.shape,
        "dtype": str(tensor.dtype).removeprefix("torch."),
        "nbytes": tensor.nbytes,
    }
