"""``Trace.to_model_explorer()``: the JSON of graphs that Google's model-explorer reads.

Source:
    ``graph_builder.py`` of ai-edge-model-explorer 0.1.34, which explains each name, and
    ``info_panel.ts`` beside it for ``tensor_shape`` and ``__tensor_tag``.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from meta_magic.trace.calls import OpCall, TensorMetadata
from meta_magic.trace.graphs import Edge, Namespaces, find_edges, list_made
from meta_magic.trace.modules import ModuleNode
from meta_magic.trace.program import Program
from meta_magic.trace.signature import Signature
from meta_magic.trace.units import format_bytes, format_count, format_flops
from meta_magic.view.details_payload import name_inputs
from meta_magic.view.wire import format_arguments

if TYPE_CHECKING:
    from meta_magic.trace.trace import Trace


Json: TypeAlias = dict[str, Any]

RAISED: Final = {"backgroundColor": "#fdecea", "borderColor": "#c62828"}
"""The style of the operator that failed."""


def write_graphs(trace: "Trace", file: Path) -> None:
    """Write the file: a list of one graph."""
    if file.suffix != ".json":
        raise ValueError(
            f"model-explorer reads graphs of files named *.json, not {file.name!r}"
        )
    text = json.dumps([build_graph(trace)], separators=(",", ":"))
    file.write_text(text, encoding="utf-8")


def build_graph(trace: "Trace") -> Json:
    """Return the graph: operators are nodes, phases and modules are layers."""
    namespaces, program = Namespaces(trace), trace.program.with_raised
    paths = [*map(namespaces.of, trace.ops)]
    signatures = map(program.signatures.__getitem__, program.signature_numbers())
    ops = [*map(write_op, trace.ops, signatures, paths)]
    outside: dict[int, list[Edge]] = {}
    source: int | str | None
    for edge in find_edges(trace.ops):
        source = edge.source
        if source is None:
            outside.setdefault(edge.tensor.tensor_id, []).append(edge)
            source = f"tensor {edge.tensor.tensor_id}"
        incoming = {
            "sourceNodeId": str(source),
            "sourceNodeOutputId": str(edge.output),
            "targetNodeInputId": str(edge.input),
        }
        ops[edge.target]["incomingEdges"].append(incoming)
    owners = find_owners(program, namespaces)
    tensors = []
    for edges in outside.values():
        tensor = edges[0].tensor
        label = name_outside(tensor, owners.get(tensor.storage_id))
        readers = [paths[edge.target] for edge in edges]
        tensors.append(write_outside(tensor, label, readers))
    return {
        "id": trace.modules[0].name if trace.modules else "trace",
        "nodes": [*tensors, *ops],
        "groupNodeAttributes": dict(write_groups(namespaces, paths)),
    }


def write_op(call: OpCall, signature: Signature, path: str) -> Json:
    """Return the node of an operator, without its edges."""
    attributes = {
        "function": call.function,
        "arguments": format_arguments(signature),
        "line": call.line,
        "phase": call.phase,
        "FLOPs": None if call.flops is None else format_flops(call.flops),
        "read": format_bytes(call.nbytes_read),
        "written": format_bytes(call.nbytes_written),
        "kernel": call.kernel,
        "assumed": call.assumed,
        "raised": call.raised,
    }
    node = {
        "id": str(call.index),
        "label": call.op,
        "namespace": path,
        "attrs": write_attributes(attributes),
        "incomingEdges": [],
        "inputsMetadata": [
            {"id": str(i), "attrs": write_attributes({"__tensor_tag": name})}
            for i, name in enumerate(name_inputs(signature))
        ],
        "outputsMetadata": [
            write_tensor(i, made) for i, made in enumerate(list_made(call))
        ],
    }
    return node | ({"style": RAISED} if call.raised else {})


def write_outside(tensor: TensorMetadata, label: str, paths: Sequence[str]) -> Json:
    """Return the node of a tensor from outside, in the layer that its readers share."""
    parts = zip(*(path.split("/") for path in paths), strict=False)
    shared = takewhile(lambda part: len({*part}) == 1, parts)
    return {
        "id": f"tensor {tensor.tensor_id}",
        "label": label,
        "namespace": "/".join(part[0] for part in shared),
        "outputsMetadata": [write_tensor(0, tensor)],
    }


def write_tensor(number: int, tensor: TensorMetadata) -> Json:
    """Return the metadata of an output of a node."""
    dtype = str(tensor.dtype).removeprefix("torch.")
    attributes = {
        "tensor_shape": f"{dtype}{[*tensor.shape]}",  # as for its own PyTorch models
        "stride": None if tensor.stride is None else str(tensor.stride),
        "place": tensor.device if tensor.is_real else tensor.place,
        "bytes": format_bytes(tensor.nbytes),
    }
    return {"id": str(number), "attrs": write_attributes(attributes)}


def write_attributes(attributes: Mapping[str, object]) -> list[Json]:
    """Return attributes as pairs, without those that are empty."""
    return [
        {"key": key, "value": str(value)}
        for key, value in attributes.items()
        if value not in {None, ""}
    ]


def write_groups(
    namespaces: Namespaces, paths: Iterable[str]
) -> Iterator[tuple[str, Json]]:
    """Yield the attributes of layers that are modules."""
    parts = (path.split("/") for path in dict.fromkeys(paths))
    layers = (layer for names in parts for layer in accumulate(names, "{}/{}".format))
    for layer in dict.fromkeys(layers):
        node = namespaces.find_module(layer)
        if node is not None:
            attributes = {
                "class": node.class_name,
                "parameters": format_count(node.n_parameters),
                "bytes": format_bytes(node.parameter_nbytes + node.buffer_nbytes),
                "calls": f"{node.n_calls:,}",
            }
            yield layer, attributes


def find_owners(program: Program, namespaces: Namespaces) -> dict[int, ModuleNode]:
    """Return the module of each parameter or buffer, by its storage."""
    nodes = namespaces.node_by_name
    owners = (
        (storage, program.modules[i][:2]) for storage, i in program.owner_by_storage
    )
    return {storage: nodes[name] for storage, name in owners if name in nodes}


def name_outside(tensor: TensorMetadata, owner: ModuleNode | None) -> str:
    """Return the label of a tensor from outside."""
    if owner is None:
        return "input"
    alike = [
        own.name
        for own in owner.tensors
        if (own.shape, own.dtype) == (tensor.shape, tensor.dtype)
    ]
    return alike[0] if len(alike) == 1 else "parameter"
