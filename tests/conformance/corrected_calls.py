"""Calls of operators whose kernels on meta are corrected."""

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


# Calls too large for the CPU, which is asked with two elements a dimension


SIZES = 2, 16, 48, 48
"""More than the CPU is asked with."""


def batch_gradient(a, grad):
    """Return the gradient of a batch norm, of some layouts."""
    w = torch.ones(16)
    weights = w, w, w, w, w, True, 1e-5, [True, False, False]
    return aten.native_batch_norm_backward(grad, a, *weights)[0]


def layer_gradient():
    """Return the gradient of a layer norm of what is transposed."""
    x, ones = torch.ones(300, 400).t(), torch.ones(400, 1)
    given = x, x, [300], ones, ones, None, None, [True, False, False]
    return aten.native_layer_norm_backward(*given)[0]


def last(*sizes):
    return torch.ones(sizes).to(memory_format=torch.channels_last)


def reversed_(*sizes):
    return torch.ones(sizes[::-1]).permute(3, 2, 1, 0)


LARGE = {
    "channels last, gradient in rows": lambda: batch_gradient(
        last(*SIZES), torch.ones(SIZES)
    ),
    "rows, gradient with channels last": lambda: batch_gradient(
        torch.ones(SIZES), last(*SIZES)
    ),
    "norm of what is reversed": lambda: torch.nn.functional.batch_norm(
        reversed_(*SIZES), None, None, training=True
    ),
    "roll of channels last": lambda: last(*SIZES).roll((1, 1), (2, 3)),
    "gradient of a layer norm": layer_gradient,
    "logarithm of sigmoid": lambda: torch.nn.functional.logsigmoid(reversed_(*SIZES)),
    "losses beside a dimension of size 1 with a gap": lambda: (
        torch.nn.functional.mse_loss(
            torch.ones(1, 41, 2003).permute(1, 2, 0),
            torch.ones(41, 2003, 2)[..., :1],
            reduction="none",
        )
    ),
    "sign of what is transposed": lambda: torch.copysign(
        torch.ones(300, 400).t(), torch.ones(400, 300)
    ),
}


# Losses and their gradients, of inputs of another layout and dtype than the target


def turned():
    """Return an input that lies in columns."""
    return torch.full((4, 3), 0.5).t()


def rows(dtype=torch.float32):
    return torch.ones(3, 4, dtype=dtype)


def gradients(operator, *settings):
    """Return calls for the gradient of a loss."""
    name, double = operator.__name__, torch.float64
    return {
        f"{name}, turned": lambda: operator(rows(), turned(), rows(), *settings),
        f"{name}, mixed": lambda: operator(rows(), rows(), rows(double), *settings),
    }


LOSSES = {
    "log_sigmoid": lambda: aten.log_sigmoid_forward(turned()),
    "entropy": lambda: aten.binary_cross_entropy(turned(), rows(), None, 0),
    "soft": lambda: aten.soft_margin_loss(rows(), rows(torch.float64), 0),
    "soft, mean": lambda: aten.soft_margin_loss(rows(), rows(torch.float64)),
    "soft, gradient": lambda: aten.soft_margin_loss_backward(
        rows(), rows(), rows(torch.float64), 0
    ),
    "huber": lambda: aten.huber_loss(rows(), rows(torch.float64), 0),
    "huber, gradient": lambda: aten.huber_loss_backward(
        rows(), turned(), rows(), 0, 1.0
    ),
    **gradients(aten.mse_loss_backward, 0),
    **gradients(aten.smooth_l1_loss_backward, 0, 1.0),
}


# Calls of the backward of a norm: what it gives depends on what is asked for


def norm_backward(operator, *rest):
    """Return a call of the backward of a norm whose input wants no gradient."""

    def call():
        a, w = torch.ones(3, 2, 4), torch.ones(2)
        mask = [False, True, True]
        return operator(a, a, w, w, w, w, w, True, 1e-5, mask, *(r() for r in rest))

    return call


BACKWARDS = {
    "first layer": norm_backward(aten.native_batch_norm_backward),
    "first layer, updating": norm_backward(
        aten.batch_norm_backward, lambda: torch.ones(0)
    ),
}
