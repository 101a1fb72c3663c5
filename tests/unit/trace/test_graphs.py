"""The trace as a graph: what leads from which operator to which."""

import torch
from torch import nn

from meta_magic import record


def list_edges(graph):
    """Return the operators at both ends of each edge, in order."""
    name = lambda node: graph.nodes[node].get("op", node)
    return [(name(source), name(target)) for source, target in graph.edges()]


def test_an_edge_leads_from_what_made_a_tensor_to_what_reads_it():
    with record() as trace:
        x = torch.ones(2, 3)
        x.relu() + x
    assert list_edges(trace.to_networkx()) == [
        ("aten.ones.default", "aten.relu.default"),
        ("aten.ones.default", "aten.add.Tensor"),
        ("aten.relu.default", "aten.add.Tensor"),
    ]


def test_what_was_written_in_place_comes_from_what_wrote_it():
    with record() as trace:
        x = torch.ones(4)
        view = x.view(2, 2)
        x.zero_()
        view.exp()
    assert list_edges(trace.to_networkx())[1:] == [
        ("aten.ones.default", "aten.zero_.default"),
        ("aten.zero_.default", "aten.exp.default"),
    ]


def test_an_edge_tells_the_metadata_of_the_tensor():
    with record() as trace:
        torch.ones(2, 3, dtype=torch.float64).relu()
    ((_, _, tensor),) = trace.to_networkx().edges(data=True)
    told = {name: tensor[name] for name in ("shape", "dtype", "nbytes")}
    assert told == {"shape": (2, 3), "dtype": "float64", "nbytes": 48}


def test_a_node_tells_what_its_operator_did_and_cost():
    with record() as trace:
        model = nn.Linear(2, 3, bias=False)
        model(torch.ones(4, 2))
    nodes = trace.to_networkx().nodes.values()
    (product,) = [node for node in nodes if node["op"] == "aten.mm.default"]
    assert product["flops"] == 2 * 4 * 2 * 3
    assert (product["kind"], product["phase"], product["module"]) == (
        "op",
        "forward",
        "",
    )
    assert "raised" not in product


def test_a_tensor_from_outside_is_a_node_of_its_own():
    x = torch.ones(2, 3, device="meta")
    with record() as trace:
        x.relu()
    graph = trace.to_networkx()
    ((source, target),) = graph.edges()
    assert target == 0
    assert graph.nodes[source]["kind"] == "tensor"
    assert graph.nodes[source]["shape"] == (2, 3)
