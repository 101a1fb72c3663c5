"""FLOPs beside torch's own count, and of the same result computed in two ways."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from meta_magic import record


def R(*shape, **settings):
    return torch.randn(*shape, **settings)


def count(run):
    with record(as_device="cpu") as trace:
        run()
    return trace.flops


def count_by_torch(run):
    """Count the FLOPs of a real run on the CPU."""
    with FlopCounterMode(display=False) as counter:
        run()
    return counter.get_total_flops()


def back(made):
    made.sum().backward()


def leaves(*shapes):
    return [R(*shape, requires_grad=True) for shape in shapes]


def encode():
    with sdpa_kernel(SDPBackend.MATH):  # the CPU's own kernel is not counted by torch
        train(nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0), R(5, 3, 8))


def train(model, *inputs):
    model.train()
    back(model(*inputs))


RIGHT = {
    "mlp": lambda: train(
        nn.Sequential(nn.Linear(5, 7), nn.GELU(), nn.Linear(7, 2)), R(3, 5)
    ),
    "matmul": lambda: back(torch.matmul(*leaves((2, 1, 3, 4), (5, 4, 6)))),
    "conv2d": lambda: train(
        nn.Conv2d(3, 4, 3, stride=2), R(2, 3, 9, 9, requires_grad=True)
    ),
    "conv_transpose2d": lambda: train(
        nn.ConvTranspose2d(3, 4, 3, stride=2), R(2, 3, 5, 5, requires_grad=True)
    ),
    "attention": lambda: nn.MultiheadAttention(8, 2)(
        R(4, 3, 8), R(5, 3, 8), R(5, 3, 8)
    ),
    "encoder": encode,
    "gru": lambda: back(nn.GRU(5, 7, 2)(R(4, 3, 5))[0]),
    "lstm cell": lambda: back(nn.LSTMCell(5, 7)(R(3, 5))[0]),
    "embedding": lambda: back(nn.Embedding(9, 4)(torch.zeros(3, dtype=torch.long))),
}


@pytest.mark.parametrize("name", RIGHT)
def test_flops_are_those_that_torch_counts_where_it_counts_right(name):
    run = RIGHT[name]
    assert count(run) == pytest.approx(count_by_torch(run), rel=1e-3)


def attend():
    query, key, value = R(2, 4, 16, 8), R(2, 4, 24, 8), R(2, 4, 24, 8)
    F.scaled_dot_product_attention(query, key, value)


def attend_by_products():
    query, key, value = R(2, 4, 16, 8), R(2, 4, 24, 8), R(2, 4, 24, 8)
    (query @ key.mT).softmax(-1) @ value


def attend_backward():
    back(F.scaled_dot_product_attention(*leaves((2, 4, 16, 8), *[(2, 4, 24, 8)] * 2)))


def attend_backward_by_products():
    attend_by_products()
    query, key, value = R(2, 4, 16, 8), R(2, 4, 24, 8), R(2, 4, 24, 8)
    weights, gradient = query @ key.mT, R(2, 4, 16, 8)
    weights.mT @ gradient
    scores = gradient @ value.mT
    scores @ key, scores.mT @ query


def convolve_by_group():
    for _ in range(4):
        x, weight = leaves((2, 2, 12, 12), (3, 2, 3, 3))
        back(F.conv2d(x, weight))


def convolve_as_products():
    windows = F.unfold(R(2, 3, 8, 8), 3)
    R(4, 27) @ windows


def run_lstm(**flags):
    with torch.backends.mkldnn.flags(**flags):
        back(nn.LSTM(8, 16, 2, bidirectional=True)(R(10, 3, 8, requires_grad=True))[0])


EQUAL = {
    "attention, products": (attend, attend_by_products),
    "attention backward, products": (attend_backward, attend_backward_by_products),
    "grouped convolution, one for each group": (
        lambda: back(F.conv2d(*leaves((2, 8, 12, 12), (12, 2, 3, 3)), groups=4)),
        convolve_by_group,
    ),
    "convolution, product with windows": (
        lambda: F.conv2d(R(2, 3, 8, 8), R(4, 3, 3, 3)),
        convolve_as_products,
    ),
    "lstm of one kernel, step by step": (run_lstm, lambda: run_lstm(enabled=False)),
    "grouped product, one for each group": (
        lambda: F.grouped_mm(
            R(12, 16), R(3, 16, 8), offs=torch.tensor([4, 9, 12], dtype=torch.int32)
        ),
        lambda: [R(n, 16) @ R(16, 8) for n in (4, 5, 3)],
    ),
    "many euclidean distances, a product": (
        lambda: torch.cdist(R(40, 5), R(30, 5)),
        lambda: R(40, 5 + 2) @ R(5 + 2, 30),
    ),
}


@pytest.mark.parametrize("name", EQUAL)
def test_a_fused_computation_costs_what_its_parts_do(name):
    fused, apart = EQUAL[name]
    assert count(fused) == count(apart) > 0
