"""What autocast keeps of the parameters that it casts, beside the CPU."""

from contextlib import nullcontext

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from meta_magic import record
from tests.unit.eager import Names

ORDERS = [(True, False), (False, True), (True, True)]
"""For each of two calls whether it is within a context that asks for no gradients."""


def call_twice(context, order):
    """Return the operators of a layer, and whether the last call wants gradients."""
    with Names() as names, torch.autocast("cpu"):
        weight = nn.Parameter(torch.ones(3, 4))
        for is_within in order:
            with context() if is_within else nullcontext():
                made = F.linear(torch.ones(2, 3, 4).transpose(0, 1), weight)
    return names.ops, made.requires_grad


@pytest.mark.parametrize("order", ORDERS, ids=str)
def test_what_is_cast_without_gradients_serves_calls_that_want_them(order):
    wanted, wants_gradient = call_twice(torch.no_grad, order)
    with record(as_device="cpu") as trace:
        _, met = call_twice(torch.no_grad, order)
    assert met == wants_gradient
    assert [op.op for op in trace.ops] == wanted


@pytest.mark.parametrize("order", ORDERS, ids=str)
def test_inference_mode_keeps_no_casts_and_takes_none(order):
    _, wants_gradient = call_twice(torch.inference_mode, order)
    with record(as_device="cpu") as trace:
        _, met = call_twice(torch.inference_mode, order)
    assert met == wants_gradient
    casts = [op for op in trace.ops if op.op == "aten._to_copy.default"]
    assert len(casts) == 4  # of the weight and of what it takes, each time
