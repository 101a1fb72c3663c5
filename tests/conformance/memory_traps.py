"""Small programs whose memory is compared, each with something that is easily wrong."""

import torch
from torch import nn

from tests.conformance.memory_models import train


def make_mlp():
    return nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))


def leak():
    model, losses = make_mlp(), []
    for _ in range(4):
        losses.append(model(torch.randn(8, 64)).sum())
    return losses


def adamw(**options):
    model = make_mlp()
    optimizer = torch.optim.AdamW(model.parameters(), **options)
    train(model, (torch.randn(8, 64),), lambda m, x: m(x).sum(), optimizer)


def fused():
    adamw(fused=True)


def foreach():
    adamw(foreach=True)


def gradients_kept_as_zeros():
    model = make_mlp()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(2):
        optimizer.zero_grad(set_to_none=False)
        model(torch.randn(8, 64)).sum().backward()
        optimizer.step()


def assigned_gradients():
    model = make_mlp()
    loss = model(torch.randn(8, 64)).sum()
    grads = torch.autograd.grad(loss, list(model.parameters()))
    for parameter, grad in zip(model.parameters(), grads, strict=True):
        parameter.grad = grad
    torch.optim.Adam(model.parameters()).step()


def second_order():
    model, x = make_mlp(), torch.randn(8, 64, requires_grad=True)
    (grad,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
    grad.square().sum().backward()


def resizing():
    x = torch.empty(0)
    x.resize_(1000)
    y = torch.ones(10)
    x.resize_(2000)
    z = torch.empty(0)
    torch.add(y, y, out=z)
    y.untyped_storage().resize_(0)
    return x, y, z, torch.ones(5)


class Node:
    """Refers to itself, and so lives until the collector comes."""

    def __init__(self, numel):
        self.me = self
        self.x = torch.ones(numel)


def circles():
    for _ in range(5):
        Node(1000)
    return torch.ones(3)


def sparse_embedding():
    model = nn.Embedding(100, 16, sparse=True)
    optimizer = torch.optim.SparseAdam(model.parameters())
    ids = torch.randint(0, 100, (8,))
    train(model, (ids,), lambda m, x: m(x).sum(), optimizer)


def autocast():
    model = make_mlp()
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(2):
        with torch.autocast("cpu", torch.bfloat16):
            loss = model(torch.randn(8, 64)).float().sum()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def lbfgs():
    model, x = make_mlp(), torch.randn(8, 64)
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=2)

    def closure():
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        return loss

    optimizer.step(closure)


def saved_on_the_cpu():
    model = make_mlp()
    with torch.autograd.graph.save_on_cpu():
        loss = model(torch.randn(8, 64)).sum()
    loss.backward()


def kernels_of_all_kinds():
    parts = [nn.Conv2d(8, 16, 3, groups=4), nn.Conv2d(16, 16, 3, dilation=2)]
    model = nn.Sequential(*parts, nn.ConvTranspose2d(16, 8, 3, 2))
    model(torch.randn(2, 8, 24, 24)).square().mean().backward()
    nn.Conv1d(4, 8, 3)(torch.randn(2, 4, 20)).sum().backward()
    nn.Conv3d(4, 8, 3)(torch.randn(2, 4, 8, 8, 8)).sum().backward()
    torch.fft.rfft(torch.randn(4, 64)).abs().sum()
    torch.einsum("bij,bjk->bik", torch.randn(2, 3, 4), torch.randn(2, 4, 5))
    torch.linalg.svd(torch.randn(6, 6))
    torch.sort(torch.randn(100))
    torch.cdist(torch.randn(10, 3), torch.randn(10, 3))


TRAPS = (
    *(leak, fused, foreach, gradients_kept_as_zeros, assigned_gradients, second_order),
    *(resizing, circles, sparse_embedding, autocast, lbfgs, saved_on_the_cpu),
    kernels_of_all_kinds,
)
