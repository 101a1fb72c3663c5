"""Losses and their gradients, of inputs of another layout and dtype than the target."""

import torch

aten = torch.ops.aten


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
