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
