"""The trace as model-explorer reads it: layers, nodes, what leads to them."""

import json

import pytest
import torch
from torch import nn

from meta_magic import record


def write(trace, folder):
    """Return the only graph of the file that is written."""
    path = folder / "graph.json"
    trace.to_model_explorer(path)
    (graph,) = json.loads(path.read_text("utf-8"))
    return graph


def find_nodes(graph, label):
    return [node for node in graph["nodes"] if node["label"] == label]


def read_attributes(attributes):
    return {item["key"]: item["value"] for item in attributes}


@pytest.fixture
def graph(tmp_path):
    model = nn.Sequential(nn.Linear(2, 3), nn.ReLU()).to("meta")
    with record() as trace:
        model(torch.ones(4, 2))
    return write(trace, tmp_path)


def test_the_layers_of_an_operator_are_its_modules(graph):
    (product,) = find_nodes(graph, "aten.addmm.default")
    assert product["namespace"] == "model/0"


def test_a_node_shows_its_arguments_and_its_cost(graph):
    (product,) = find_nodes(graph, "aten.addmm.default")
    found = read_attributes(product["attrs"])
    assert found["FLOPs"] == "48 FLOPs"  # 2 * 4 * 2 * 3
    assert found["function"] == "torch.nn.functional.linear"
    assert found["phase"] == "forward"


def test_what_leads_to_a_node_is_there_and_each_input_has_its_name(graph):
    (product,) = find_nodes(graph, "aten.addmm.default")
    ids = {node["id"] for node in graph["nodes"]}
    assert {edge["sourceNodeId"] for edge in product["incomingEdges"]} <= ids
    names = [read_attributes(item["attrs"]) for item in product["inputsMetadata"]]
    assert [name["__tensor_tag"] for name in names] == ["self", "mat1", "mat2"]


def test_an_output_has_its_shape_and_dtype(graph):
    (product,) = find_nodes(graph, "aten.addmm.default")
    (output,) = product["outputsMetadata"]
    assert read_attributes(output["attrs"])["tensor_shape"] == "float32[4, 3]"


def test_a_layer_shows_what_module_it_is(graph):
    found = graph["groupNodeAttributes"]["model/0"]
    assert found["class"] == "Linear"
    assert found["parameters"] == "9"
    assert found["bytes"] == "36 bytes"


def test_a_module_that_is_called_again_has_a_layer_for_each_call(tmp_path):
    with record() as trace:
        model = nn.ReLU()
        model(model(torch.ones(2)))
    nodes = find_nodes(write(trace, tmp_path), "aten.relu.default")
    assert [node["namespace"] for node in nodes] == ["model", "model (call 2)"]


def test_the_operator_that_raised_is_marked(tmp_path):
    with pytest.raises(RuntimeError), record() as trace:
        torch.ones(2) + torch.ones(3)
    last = write(trace, tmp_path)["nodes"][-1]
    assert "size of tensor" in read_attributes(last["attrs"])["raised"]
    assert last["style"]["borderColor"]


def test_a_name_that_model_explorer_does_not_read_is_refused(tmp_path):
    with record() as trace:
        torch.ones(2)
    with pytest.raises(ValueError, match=r"files named \*\.json, not 'graph\.txt'"):
        trace.to_model_explorer(tmp_path / "graph.txt")
