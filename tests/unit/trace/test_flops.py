"""FLOPs of operators, beside those that torch counts."""

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from meta_magic import record


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


def run_lstm(**settings):
    layer = nn.LSTM(5, 7, 2, bidirectional=True, **settings)
    n = 3 if settings.get("batch_first") else 4
    states = [torch.zeros(4, n, 7, requires_grad=True) for _ in range(2)]
    made, _ = layer(torch.randn(3, 4, 5, requires_grad=True), states)
    made.sum().backward()


@pytest.mark.parametrize("settings", [{}, {"batch_first": True}, {"bias": False}])
def test_an_lstm_costs_what_its_products_do(settings):
    # Without oneDNN the CPU computes it by products that torch counts.
    with (
        torch.backends.mkldnn.flags(enabled=False),
        FlopCounterMode(display=False) as wanted,
    ):
        run_lstm(**settings)
    with record() as trace:
        run_lstm(**settings)
    assert any("mkldnn_rnn_layer" in call.op for call in trace.ops)
    assert trace.flops == wanted.get_total_flops()


def test_a_grouped_product_costs_what_its_groups_do():
    offsets = [2, 6, 8]
    with record() as trace:
        ends = torch.tensor(offsets, dtype=torch.int32)
        rows, experts = torch.randn(8, 16), torch.randn(3, 16, 32)
        nn.functional.grouped_mm(rows, experts, offs=ends)
        nn.functional.grouped_mm(rows.t(), torch.randn(8, 32), offs=ends)
        nn.functional.grouped_mm(torch.randn(3, 8, 16), experts)
    flops = [call.flops for call in trace.ops if "grouped" in call.op]
    by_rows = sum(2 * n * 16 * 32 for n in (2, 4, 2))
    assert flops == [by_rows, by_rows, 3 * 2 * 8 * 16 * 32]
