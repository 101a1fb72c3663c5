"""Calls too large for the CPU, which is asked with two elements a dimension."""

import torch

aten = torch.ops.aten

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
