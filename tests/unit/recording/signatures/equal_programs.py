"""Programs whose recordings are to be equal, whatever was recorded before."""

import copy
import warnings

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional


class Double(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        return gradient * ctx.saved_tensors[0]


def call_own_function():
    x = torch.zeros(2, requires_grad=True)
    (Double.apply(x) * x).sum().backward()


def negate_lazily():
    x, z = torch.ones(3, 4), torch.ones(2, dtype=torch.complex64)
    for _ in range(2):
        negated = z.conj().imag
        functional.relu(torch.tanh(x) + x)
        functional.relu(negated + 1)


def read_values():
    for value in (1.5, 2.5):
        torch.full((2,), (torch.tensor(value) * 2).item())


def normalize_weights():
    with pytest.warns(FutureWarning, match="weight_norm"):
        layer = nn.utils.weight_norm(nn.Linear(4, 4))
    with torch.no_grad():
        layer(torch.ones(2, 4))


def copy_lazy_modules():
    lazy = nn.LazyLinear(3)
    for layer in (copy.deepcopy(lazy), copy.deepcopy(lazy)):
        layer(torch.ones(2, 4))


def call_functions():
    x = torch.ones(3, 4)
    functional.relu(torch.tanh(x) + x)


def take_parts():
    x, at = torch.ones(6, 4), torch.tensor([0, 3])
    for _ in range(2):
        a, b = x[at].split(1)
        c, d = (a + b).unbind(0)[0].chunk(2)
        x[:, at][1] + c[0] + d[-1]


def count_real_steps():
    with torch.device("cpu"):
        real = torch.ones(())
    for step in range(3):
        real += 1
        assert real.item() == 2 + step
    real.numpy()[()] = 7
    real += 1
    assert real.item() == 8
    with torch.device("cpu"):
        other = torch.ones(1)
    for size in (2, 2, 3):
        other.resize_(size)


def meet_others_at_addresses():
    layer, x = nn.Linear(4, 4), torch.ones(3, 4)
    with torch.no_grad():
        for size in (3, 4, 3, 4):
            cached = torch.tensor([])
            x = torch.cat([cached, layer(torch.ones(size, 4)[:3])])
            functional.linear(x * x, torch.ones(4, 4), layer.bias)
            x.data = x[1:] + x[:1]
            del cached


def add_sparse_tensors():
    at = torch.tensor([[0, 1], [0, 1]])
    made = torch.sparse_coo_tensor(at, torch.ones(2), (2, 2), check_invariants=False)
    for _ in range(2):
        (torch.ones(2, 2) + made) * made.to_dense()


def draw_on_meta_by_name():
    for device in ("meta", None):
        x = torch.ones(3, 4, device=device)
        for _ in range(3):
            functional.dropout(torch.bernoulli(x))


def refuse_a_position():
    table, ones = torch.ones(4, 3), torch.ones(2)
    functional.embedding(torch.tensor([1, 2]), table)
    with pytest.raises(IndexError):
        functional.embedding(torch.tensor([1, 7]), table)
    ones + 1


def call_traced_module():
    layer, x = nn.Linear(3, 4), torch.ones(2, 3)
    with torch.no_grad():
        layer(x)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            traced = torch.jit.trace(layer, x)
        traced(x)


def write_arrays_between_calls():
    first, second = np.zeros(3, "f4"), np.ones(3, "f4")
    scale, x = torch.from_numpy(first), torch.from_numpy(second)
    for _ in range(2):
        for call in (
            lambda: torch.cosine_similarity(scale, x, 0),
            lambda: functional.rms_norm(scale, (3,), x),
            lambda: torch.outer(scale, x),
        ):
            first += 1
            second += 1
            call()


PROGRAMS = (
    refuse_a_position,
    call_traced_module,
    write_arrays_between_calls,
    draw_on_meta_by_name,
    count_real_steps,
    add_sparse_tensors,
    meet_others_at_addresses,
    call_functions,
    take_parts,
    call_own_function,
    negate_lazily,
    read_values,
    normalize_weights,
    copy_lazy_modules,
)
