"""Sparse tensors: calls that make them or take them, and training with them."""

import torch
from torch import nn
from torch.nn import functional


def sparse(values, *, is_coalesced=None):
    """Return a sparse matrix of three elements."""
    at = torch.tensor([[2, 0, 1], [0, 1, 1]])
    options = {"is_coalesced": is_coalesced, "check_invariants": False}
    return torch.sparse_coo_tensor(at, values, (3, 4), **options)


def edges(size=(6, 5), n=11, dtype=torch.float32):
    """Return coordinates with some positions twice."""
    at = torch.stack([torch.randint(0, end, (n,)) for end in size])
    return torch.sparse_coo_tensor(at, torch.randn(n, dtype=dtype), size)


def rows(dtype=torch.float32):
    """Return a matrix compressed by rows."""
    return edges(dtype=dtype).coalesce().to_sparse_csr()


def integers(n=20, shape=(4, 7)):
    """Return positions in a table of embeddings."""
    return torch.randint(0, n, shape)


TO_STRIDES = {
    "to strides": lambda: torch.zeros(3, 4, layout=torch.sparse_coo).to_dense()
}
"""What torch's own kernel for meta refuses."""

CALLS = {
    "coordinates": lambda: functional.relu(torch.randn(3, 4)).to_sparse(),
    "rows by coordinates": lambda: functional.relu(torch.randn(3, 4)).to_sparse(1),
    "coordinates of rows": lambda: torch.randn(3, 4).to_sparse(dense_dim=1),
    "at positions": lambda: torch.randn(3, 4).sparse_mask(sparse(torch.ones(3))),
    "at coalesced positions": lambda: torch.randn(3, 4).sparse_mask(
        sparse(torch.ones(3), is_coalesced=True)
    ),
    "coalesced": lambda: edges().coalesce(),
    "of rows": lambda: torch.sparse_coo_tensor(
        torch.tensor([[0, 2, 2]]), torch.randn(3, 4), (3, 4)
    ).coalesce(),
    "of lists": lambda: torch.sparse_coo_tensor([[0, 1], [2, 0]], [3.0, 4.0], (2, 3)),
    "of names": lambda: torch.sparse_coo_tensor(
        indices=[[0, 1], [2, 0]], values=[3, 4], size=(2, 3), dtype=torch.float64
    ),
    "of no size": lambda: torch.sparse_coo_tensor(integers(5, (2, 9)), torch.randn(9)),
    "of a size": lambda: torch.sparse_coo_tensor((3, 4)),
    "by new": lambda: edges().new(torch.tensor([[0], [1]]), torch.ones(1), (2, 3)),
    "of diagonals": lambda: torch.sparse.spdiags(
        torch.randn(3, 4), torch.tensor([0, 1, -1]), (4, 4)
    ),
    "added": lambda: edges() + edges(),
    "coalesced and added": lambda: edges().coalesce() + edges().coalesce(),
    "scaled": lambda: edges() * 2,
    "multiplied": lambda: edges().coalesce() * edges().coalesce(),
    "by a matrix": lambda: edges() * torch.randn(6, 5),
    "transposed": lambda: edges().t(),
    "joined": lambda: torch.cat([edges(), edges()]),
    "squared": lambda: edges().pow(2),
    "selected": lambda: edges().index_select(0, torch.tensor([2, 0])),
    "one row": lambda: edges()[1],
    "summed": lambda: torch.sparse.sum(edges(), 0),
    "normalized": lambda: torch.sparse.softmax(edges(), 1),
    "product": lambda: torch.sparse.mm(edges(), edges().t()),
    "copied into": lambda: torch.zeros(6, 5, layout=torch.sparse_coo).copy_(edges()),
    "cast": lambda: edges().double(),
    "scaled in place": lambda: edges().mul_(2),
    "added in place": lambda: edges().add_(edges()),
    "compressed": rows,
    "of compressed": lambda: rows().to_sparse(),
    "compressed and added": lambda: rows() + rows(),
    "compressed by columns": lambda: rows().to_sparse_csc(),
    "in blocks": lambda: functional.relu(torch.randn(4, 6)).to_sparse_bsr((2, 3)),
    "compressed at positions": lambda: torch.sparse.sampled_addmm(
        rows(), torch.randn(6, 2), torch.randn(2, 5)
    ),
}
"""Calls that make sparse tensors."""


def in_inference_mode():
    with torch.inference_mode():
        return (edges() + edges()).coalesce().values()


DENSE = {
    "in inference mode": in_inference_mode,
    "to strides": lambda: edges().to_dense(),
    "product": lambda: torch.sparse.mm(edges(), torch.randn(5, 3)),
    "product with rows": lambda: rows() @ torch.randn(5, 3),
    "product with a vector": lambda: edges().coalesce() @ torch.randn(5),
    "sum": lambda: torch.sparse.sum(edges()),
    "added to": lambda: torch.randn(6, 5).add_(edges(), alpha=0.5),
    "indices": lambda: edges().coalesce().indices(),
    "values": lambda: edges().coalesce().values(),
    "row pointers": lambda: rows().crow_indices(),
}
"""Calls that make dense tensors of sparse ones."""


def train(model, optimizer, make_input=integers, n_steps=3):
    """Return the losses of some steps, all weights, and the optimizer's tensors."""
    losses = []
    for _ in range(n_steps):
        optimizer.zero_grad()
        loss = model(make_input()).pow(2).mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    states = [value for state in optimizer.state.values() for value in state.values()]
    tensors = [value for value in states if isinstance(value, torch.Tensor)]
    return losses, [*model.parameters()], tensors


def train_embedding(optimizer, **options):
    model = nn.Embedding(20, 4, sparse=True, **options)
    return train(model, optimizer(model.parameters()))


def train_bag(optimizer, mode):
    model = nn.EmbeddingBag(20, 4, sparse=True, mode=mode)
    return train(model, optimizer(model.parameters()))


def train_layers():
    first, second = nn.Embedding(20, 4, sparse=True), nn.Embedding(9, 4, sparse=True)
    linear = nn.Linear(4, 3)
    tables = [*first.parameters(), *second.parameters()]
    optimizers = (
        torch.optim.SparseAdam(tables, lr=0.1),
        torch.optim.Adam(linear.parameters(), lr=0.1),
    )
    for _ in range(3):
        at = integers()
        linear(first(at) * second(at % 9)).pow(2).mean().backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    return [], [*tables, *linear.parameters()], []


def train_by_two_batches(*, is_set_to_none=True):
    model = nn.Embedding(20, 4, sparse=True)
    optimizer = torch.optim.SparseAdam(model.parameters(), lr=0.1)
    for _ in range(2):
        optimizer.zero_grad(set_to_none=is_set_to_none)
        for _ in range(3):
            model(integers()).pow(2).sum().backward()
        optimizer.step()
    return [model.weight.grad._nnz()], [model.weight], []


def train_with_clipped_values():
    model = nn.Embedding(20, 4, sparse=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(integers()).pow(2).sum().backward()
    model.weight.grad = model.weight.grad.coalesce()
    norm = model.weight.grad.values().norm()
    model.weight.grad.values().mul_(1 / (norm + 1))
    optimizer.step()
    return [norm.item()], [model.weight], []


def train_graph(*, is_buffer=False, layout=torch.sparse_coo):
    size = 8
    at = integers(size, (2, 20))
    found = torch.sparse_coo_tensor(at, torch.ones(20), (size, size))
    graph = (found + torch.eye(size).to_sparse()).coalesce()
    if layout is torch.sparse_csr:
        graph = graph.to_sparse_csr()

    class Graph(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Linear(4, 6), nn.Linear(6, 3)
            if is_buffer:
                self.register_buffer("graph", graph)

        def forward(self, x):
            hidden = functional.relu(torch.sparse.mm(graph, self.first(x)))
            return (self.graph if is_buffer else graph) @ self.second(hidden)

    model = Graph()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    return train(model, optimizer, lambda: torch.randn(size, 4))


def train_weights_of_edges():
    at, weight = integers(6, (2, 9)), nn.Parameter(torch.randn(9))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    losses = []
    for _ in range(3):
        graph = torch.sparse_coo_tensor(at, weight, (6, 6))
        loss = torch.sparse.mm(graph, torch.ones(6, 2)).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, [weight], []


TRAINING = {
    "SparseAdam": lambda: train_embedding(torch.optim.SparseAdam),
    "SGD": lambda: train_embedding(lambda p: torch.optim.SGD(p, lr=0.1)),
    "Adagrad": lambda: train_embedding(torch.optim.Adagrad),
    "padding": lambda: train_embedding(torch.optim.SparseAdam, padding_idx=0),
    "bag": lambda: train_bag(torch.optim.SparseAdam, "sum"),
    "bag of means": lambda: train_bag(torch.optim.Adagrad, "mean"),
    "layers": train_layers,
    "two batches": train_by_two_batches,
    "two batches in place": lambda: train_by_two_batches(is_set_to_none=False),
    "clipped": train_with_clipped_values,
    "graph": train_graph,
    "graph in a buffer": lambda: train_graph(is_buffer=True),
    "graph by rows": lambda: train_graph(layout=torch.sparse_csr),
    "weights of edges": train_weights_of_edges,
}
"""Training; each returns numbers, weights, and an optimizer's tensors."""
