"""What every program begins with: imports, and modules that are not torch's own."""

import copy
import pickle
import random

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import prune
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset

import meta_magic as mm

__all__ = [
    "Checkpointed",
    "Counted",
    "DataLoader",
    "Double",
    "Doubled",
    "F",
    "Labeled",
    "Stateful",
    "TensorDataset",
    "Tied",
    "checkpoint",
    "copy",
    "mm",
    "nn",
    "np",
    "pickle",
    "prune",
    "random",
    "reset",
    "torch",
    "train",
]


class Tied(nn.Module):
    """Two layers with one weight."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
        self.second.weight = self.first.weight

    def forward(self, x):
        return self.second(self.first(x).tanh())


class Stateful(nn.Module):
    """Two buffers on one storage, which each call writes, and a tensor in a list."""

    def __init__(self):
        super().__init__()
        self.register_buffer("history", torch.zeros(2, 4))
        self.register_buffer("last", self.history[1])
        self.register_buffer("mask", torch.rand(4) > 0.5, persistent=False)
        self.scales = [torch.full((4,), 2.0)]
        self.n_calls = 0

    def forward(self, x):
        self.n_calls += 1
        with torch.no_grad():
            self.history[0] += x.mean(0)
            self.last.copy_(x[0])
        return torch.where(self.mask, x, self.history[0]) * self.scales[0]


class Checkpointed(nn.Module):
    """A layer whose inner values are computed again in the backward."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x):
        return checkpoint(
            lambda x: F.dropout(self.layer(x), 0.3), x, use_reentrant=False
        )


class Double(torch.autograd.Function):
    """Twice its input, with a backward of its own."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return gradient * 2 + x * 0


class Doubled(nn.Module):
    """A parametrization: twice a weight."""

    def forward(self, weight):
        return weight * 2

    def right_inverse(self, weight):
        return weight / 2


class Labeled(torch.Tensor):
    """A tensor of a class of one's own."""


class Counted(torch.Tensor):
    """A tensor whose class sees all calls, and counts them."""

    n_calls = 0

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        cls.n_calls += 1
        return super().__torch_function__(func, types, args, kwargs or {})


def reset(module):
    """Initialize a layer otherwise."""
    if isinstance(module, nn.Linear):
        nn.init.normal_(module.weight, std=0.02)


def train(module, optimizer, call):
    """Make a step of training."""
    optimizer.zero_grad()
    made = call()
    (made[0] if isinstance(made, tuple) else made).pow(2).mean().backward()
    optimizer.step()
