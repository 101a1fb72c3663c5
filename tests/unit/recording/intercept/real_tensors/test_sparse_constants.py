"""Real sparse tensors, from before a cell, that meet meta tensors in it."""

import pytest
import torch
from torch import nn

from meta_magic import record
from tests.conformance.sparse_calls import edges, rows

pytestmark = pytest.mark.filterwarnings("ignore:Sparse:UserWarning")

MADE = {
    "coordinates": lambda: edges((5, 5)),
    "coalesced": lambda: edges((5, 5)).coalesce(),
    "rows": lambda: edges((5, 5)).coalesce().to_sparse_csr(),
}


def multiply(graph):
    return (graph @ torch.randn(5, 3)).tolist()


def multiply_where_the_cpu_is_named(graph):
    x = torch.randn(5, 3)
    with torch.device("cpu"):
        return torch.sparse.mm(graph, x).tolist()


def add(graph):
    if graph.layout is not torch.sparse_coo:
        return []
    return (torch.randn(5, 5) + graph).tolist()


def train(graph):
    first, second = nn.Linear(4, 6), nn.Linear(6, 2)
    weights = [*first.parameters(), *second.parameters()]
    optimizer = torch.optim.Adam(weights, lr=0.1)
    x, losses = torch.randn(5, 4), []
    for _ in range(3):
        hidden = torch.sparse.mm(graph, first(x)).relu()
        loss = torch.sparse.mm(graph, second(hidden)).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, [weight.tolist() for weight in weights]


def train_with_a_buffer(graph):
    model = nn.Linear(4, 6)
    model.register_buffer("graph", graph)
    loss = (model.graph @ model(torch.randn(5, 4))).pow(2).sum()
    loss.backward()
    return model.weight.grad.tolist()


def change(graph):
    before = (graph @ torch.ones(5, 2)).tolist()
    graph.mul_(2)
    after = (graph @ torch.ones(5, 2)).tolist()
    graph.mul_(0.5)
    return before, after


def look(graph):
    return graph._nnz(), graph.to_dense().tolist(), str(graph)


BLOCKS = [multiply, multiply_where_the_cpu_is_named, add, train, train_with_a_buffer]


@pytest.mark.parametrize("made", MADE)
@pytest.mark.parametrize("block", [*BLOCKS, change, look])
def test_a_real_sparse_tensor_is_a_constant_of_the_cell(block, made):
    torch.manual_seed(7)
    graph = MADE[made]()
    before = str(graph)
    torch.manual_seed(0)
    wanted = block(graph)
    torch.manual_seed(0)
    with record():
        met = block(graph)
    assert met == wanted
    assert str(graph) == before


def test_a_real_sparse_tensor_keeps_its_values_on_the_way_to_meta():
    graph = edges().coalesce()
    with record():
        moved = graph.to("meta")
        assert moved.is_meta
        assert moved._nnz() == graph._nnz()
        assert moved.to_dense().tolist() == graph.to_dense().tolist()


def test_a_real_sparse_leaf_that_wants_a_gradient_is_refused():
    graph = rows().requires_grad_()
    with record(), pytest.raises(RuntimeError):
        graph @ torch.randn(5, 3)
