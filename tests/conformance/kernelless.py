"""Calls of operators of which torch has no kernel on meta at all."""

import torch
from torch.nn.functional import ctc_loss, fractional_max_pool3d

aten = torch.ops.aten


def solve(*shapes, driver=None, dtype=torch.float32):
    """Return a call of a solver of linear equations."""
    return lambda: torch.linalg.lstsq(
        *(torch.rand(shape, dtype=dtype) for shape in shapes), driver=driver
    )


def pool():
    """Return the gradient of a random pooling."""
    a = torch.rand(2, 3, 6, 6, 6, requires_grad=True)
    fractional_max_pool3d(a, 2, output_size=3).sum().backward()
    return a.grad


def align():
    """Return the gradient of a loss of sequences."""
    a = torch.rand(6, 2, 5, requires_grad=True)
    targets, lengths = torch.randint(1, 5, (2, 3)), torch.tensor([3, 2])
    ctc_loss(a.log_softmax(2), targets, torch.full((2,), 6), lengths).backward()
    return a.grad


def targets(*shape):
    return torch.zeros(*shape, dtype=torch.long)


KERNELLESS = {
    "equations, high": solve((5, 3), (5, 2)),
    "equations, wide": solve((3, 5), (3, 2)),
    "equations, one side": solve((2, 5, 3), (2, 5)),
    "equations, batches": solve((2, 6, 3, 5), (2, 6, 3, 2)),
    "equations, full ranks": solve((5, 3), (5, 2), driver="gels"),
    "equations, wide, full ranks": solve((3, 5), (3, 2), driver="gels"),
    "equations, complex": solve((5, 3), (5, 2), driver="gels", dtype=torch.complex64),
    "margins": lambda: aten.multi_margin_loss_backward(
        *(torch.ones(()), torch.rand(4, 3).t(), targets(3), 1, 1)
    ),
    "margins of labels": lambda: aten.multilabel_margin_loss_backward(
        *(torch.ones(()), torch.rand(4, 3).t(), targets(3, 4), 1, torch.zeros(3, 4))
    ),
    "random pooling": pool,
}
SEQUENCES = {"gradient of sequences": align}
