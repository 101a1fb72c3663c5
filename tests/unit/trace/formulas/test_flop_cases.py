"""FLOPs of small calls, each with its derivation by hand: 2 for a multiply-add."""

from math import log2

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from meta_magic import record


def R(*shape, **settings):
    return torch.randn(*shape, **settings)


def heads(n_queries, n_keys, n_heads=4, n_kv=4, width=8):
    """Return query, key and value of two sequences."""
    return (
        R(2, n_heads, n_queries, width),
        R(2, n_kv, n_keys, width),
        R(2, n_kv, n_keys, width),
    )


def back(made):
    made.sum().backward()


G = {"requires_grad": True}
ENDS = lambda: torch.tensor([4, 9, 12], dtype=torch.int32)

MATRICES = {
    # 4 x 5 results, each a dot product of 3.
    "mm": (lambda: R(4, 3) @ R(3, 5), 2 * 4 * 5 * 3),
    "addmm": (lambda: torch.addmm(R(5), R(4, 3), R(3, 5)), 2 * 4 * 5 * 3),
    "linear": (lambda: F.linear(R(2, 4, 3), R(5, 3), R(5)), 2 * (2 * 4) * 5 * 3),
    # All 6 products are made, though only their sum is returned.
    "addbmm": (
        lambda: torch.addbmm(R(4, 5), R(6, 4, 3), R(6, 3, 5)),
        6 * 2 * 4 * 5 * 3,
    ),
    # Each of 5 x 7 elements is used once.
    "addmv": (lambda: torch.addmv(R(5), R(5, 7), R(7)), 2 * 5 * 7),
    # An outer product, added to each of 4 x 5 elements.
    "addr": (lambda: torch.addr(R(4, 5), R(4), R(5)), 2 * 4 * 5),
    # A complex multiply-add is 4 real ones.
    "complex mm": (
        lambda: R(4, 3, dtype=torch.complex64) @ R(3, 5, dtype=torch.complex64),
        4 * 2 * 4 * 5 * 3,
    ),
    # Rows meet the one matrix of their group, wherever the groups end: 12 x 8 dot
    # products of 16.
    "grouped_mm of rows": (
        lambda: F.grouped_mm(
            R(12, 16), R(3, 16, 8), offs=torch.tensor([4, 9, 12]).int()
        ),
        2 * 12 * 8 * 16,
    ),
    # Gradient of weights: 12 rows in groups, each an outer product of 16 by 8.
    "grouped_mm of two": (
        lambda: F.grouped_mm(R(12, 16).t(), R(12, 8), offs=ENDS()),
        2 * 12 * 16 * 8,
    ),
    # A batch of 2: j and k summed, 2 x 3 x 5 results of 4.
    "einsum": (lambda: torch.einsum("bij,bjk->bik", R(2, 3, 4), R(2, 4, 5)), 2 * 120),
    # x1 W for each of 8 rows and 6 outputs: 5 x 7; then with x2: 7.
    "bilinear": (
        lambda: F.bilinear(R(8, 5), R(8, 7), R(6, 5, 7)),
        2 * 8 * 6 * (5 * 7 + 7),
    ),
}

CONVOLUTIONS = {
    # 6 x 6 positions, 4 filters of 3 x 3 x 3; two images.
    "conv2d": (lambda: F.conv2d(R(2, 3, 8, 8), R(4, 3, 3, 3)), 2 * 2 * 36 * 4 * 27),
    # Two groups of 2 filters each, over 2 of 4 channels.
    "grouped conv2d": (
        lambda: F.conv2d(R(1, 4, 8, 8), R(4, 2, 3, 3), groups=2),
        2 * 36 * 4 * (2 * 9),
    ),
    # Stride 2, dilation 2, padding 1: (9 + 2 - 4 - 1) / 2 + 1 = 4 positions.
    "conv1d": (
        lambda: F.conv1d(R(3, 2, 9), R(5, 2, 3), stride=2, padding=1, dilation=2),
        2 * 3 * 4 * 5 * 6,
    ),
    "conv3d": (lambda: F.conv3d(R(1, 2, 4, 5, 6), R(3, 2, 2, 2, 2)), 2 * 60 * 3 * 16),
    # Each of 5 x 5 input positions is spread over 3 x 3, from 3 channels to 4.
    "conv_transpose2d": (
        lambda: F.conv_transpose2d(R(2, 3, 5, 5), R(3, 4, 3, 3), stride=2),
        2 * 2 * 25 * 3 * 4 * 9,
    ),
    # (12 - 3 + 1) steps of 2 sequences, 5 filters of 3 x 4.
    "conv_tbc": (
        lambda: torch.conv_tbc(R(12, 2, 4), R(3, 4, 5), R(5)),
        2 * 10 * 2 * 5 * 12,
    ),
    # Forward, gradient of the input, gradient of the weight: thrice the same.
    "conv2d and backward": (
        lambda: back(F.conv2d(R(2, 3, 8, 8, **G), R(4, 3, 3, 3, **G))),
        3 * 2 * 2 * 36 * 4 * 27,
    ),
    # The input needs no gradient.
    "conv2d and half a backward": (
        lambda: back(F.conv2d(R(2, 3, 8, 8), R(4, 3, 3, 3, **G))),
        2 * 2 * 2 * 36 * 4 * 27,
    ),
    "grouped conv2d and backward": (
        lambda: back(F.conv2d(R(1, 4, 8, 8, **G), R(4, 2, 3, 3, **G), groups=2)),
        3 * 2 * 36 * 4 * 18,
    ),
}

OTHERS = {
    # 2 x 4 heads, 16 queries by 24 keys, 8 wide, in two products.
    "attention": (
        lambda: F.scaled_dot_product_attention(*heads(16, 24)),
        2 * 2 * (2 * 4 * 16 * 24 * 8),
    ),
    # Two products forward and five backward.
    "attention and backward": (
        lambda: back(
            F.scaled_dot_product_attention(*[t.requires_grad_() for t in heads(16, 24)])
        ),
        (2 + 5) * 2 * (2 * 4 * 16 * 24 * 8),
    ),
    # 4 gates of 16, of inputs of 8 and of 16 hidden ones; 10 steps of 3 sequences.
    "lstm": (lambda: torch.nn.LSTM(8, 16)(R(10, 3, 8)), 2 * 10 * 3 * 4 * 16 * (8 + 16)),
    # 3 gates, both directions, two layers: the second reads 2 x 16.
    "gru": (
        lambda: torch.nn.GRU(8, 16, 2, bidirectional=True)(R(10, 3, 8)),
        2 * 10 * 3 * 2 * 3 * 16 * ((8 + 16) + (32 + 16)),
    ),
    # Difference, power and sum for each of 4 x 6 pairs and 5 coordinates.
    "cdist": (lambda: torch.cdist(R(4, 5), R(6, 5), p=3.0), 3 * 4 * 6 * 5),
    # Euclid's of over 25 rows is a product of matrices, two columns wider.
    "many cdist": (lambda: torch.cdist(R(40, 5), R(6, 5)), 2 * 40 * 6 * (5 + 2)),
    # 3 transforms of 64 points: 5 n log n, real ones half of that.
    "fft": (
        lambda: torch.fft.fft(R(3, 64, dtype=torch.complex64)),
        3 * 5 * 64 * log2(64),
    ),
    "rfft": (lambda: torch.fft.rfft(R(3, 64)), 3 * 2.5 * 64 * log2(64)),
}

LINEAR_ALGEBRA = {
    # n = 12, leading terms: LAPACK Working Note 41, Golub and Van Loan.
    "cholesky": (
        lambda: torch.linalg.cholesky(torch.eye(12).repeat(2, 1, 1)),
        2 * 12**3 / 3,
    ),
    "lu": (lambda: torch.linalg.lu_factor(R(12, 12)), 2 * 12**3 / 3),
    "inverse": (lambda: torch.linalg.inv(R(12, 12)), 2 * 12**3),
    "determinant": (lambda: torch.linalg.det(R(12, 12)), 2 * 12**3 / 3),
    # Factor, then n² multiply-adds for each of 5 right sides.
    "solve": (
        lambda: torch.linalg.solve(R(12, 12), R(12, 5)),
        2 * 12**3 / 3 + 2 * 12**2 * 5,
    ),
    # n² / 2 multiply-adds for each of 5.
    "triangular solve": (
        lambda: torch.linalg.solve_triangular(R(12, 12), R(12, 5), upper=True),
        12**2 * 5,
    ),
    # Reflections 2 n² (m - n / 3), and as many to make Q of them.
    "qr": (lambda: torch.linalg.qr(R(20, 12)), 2 * 2 * 12**2 * (20 - 12 / 3)),
    "r of qr": (lambda: torch.linalg.qr(R(20, 12), "r"), 2 * 12**2 * (20 - 12 / 3)),
    # 12 reflections of 20 elements are used on 5 columns, the later ones shorter.
    "q used": (
        lambda: torch.ormqr(R(20, 12), R(12), R(20, 5)),
        4 * 20 * 5 * 12 - 2 * 5 * 12**2,
    ),
    "q made": (
        lambda: torch.linalg.householder_product(R(20, 12), R(12)),
        2 * 12**2 * (20 - 12 / 3),
    ),
    # QR, then for each of 5 sides Q used on it, and substitution.
    "least squares": (
        lambda: torch.linalg.lstsq(R(20, 12), R(20, 5)),
        2 * 12**2 * (20 - 12 / 3) + 5 * (4 * 20 * 12 - 2 * 12**2 + 12**2),
    ),
    # Two substitutions for each of 5 sides.
    "solve by cholesky": (
        lambda: torch.cholesky_solve(R(12, 5), R(12, 12)),
        2 * 12**2 * 5,
    ),
    "solve by lu": (
        lambda: torch.linalg.lu_solve(R(12, 12), torch.arange(1, 13).int(), R(12, 5)),
        2 * 12**2 * 5,
    ),
    "eigenvalues": (lambda: torch.linalg.eigvals(R(12, 12)), 10 * 12**3),
    "eigenvectors": (lambda: torch.linalg.eig(R(12, 12)), 25 * 12**3),
    "full svd": (lambda: torch.linalg.svd(R(20, 12)), 4 * 20**2 * 12 + 22 * 12**3),
    "eigh": (lambda: torch.linalg.eigh(R(12, 12)), 9 * 12**3),
    "svd": (
        lambda: torch.linalg.svd(R(20, 12), full_matrices=False),
        6 * 20 * 12**2 + 20 * 12**3,
    ),
    "singular values": (
        lambda: torch.linalg.svdvals(R(20, 12)),
        2 * 20 * 12**2 + 2 * 12**3,
    ),
}

CASES = MATRICES | CONVOLUTIONS | OTHERS | LINEAR_ALGEBRA


@pytest.mark.parametrize("name", CASES)
def test_flops_are_those_derived_by_hand(name):
    run, wanted = CASES[name]
    with record(as_device="cpu") as trace:
        run()
    assert trace.flops == round(wanted)
    assert trace.cost.unknown == ()


# FLOPs of operators, beside those that torch counts


def test_flops_of_a_product_are_two_for_each_multiply_add():
    with record() as trace:
        torch.ones(2, 3) @ torch.ones(3, 5)
    assert trace.ops[-1].flops == 2 * 2 * 3 * 5
    assert trace.ops[0].flops is None


@pytest.mark.parametrize("needs_grad", [False, True])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("trains", [False, True])
def test_a_convolutions_backward_costs_what_torch_counts(needs_grad, bias, trains):
    def step():
        x = torch.randn(2, 3, 4, 4, requires_grad=needs_grad)
        layer = nn.Conv2d(3, 4, 3, bias=bias)
        layer.weight.requires_grad_(trains)
        made = layer(x).sum()
        if made.requires_grad:
            made.backward()

    with FlopCounterMode(display=False) as wanted:
        step()
    with record() as trace:
        step()
    assert trace.flops == wanted.get_total_flops()
