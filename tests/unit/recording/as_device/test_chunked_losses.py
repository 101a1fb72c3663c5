"""Losses of linear layers in chunks, beside the CPU's."""

import pytest
import torch
from torch.nn import functional

from meta_magic import record, verify

options = pytest.importorskip("torch.nn.modules.linear_cross_entropy_options")


def call(dtype):
    x = torch.linspace(-1, 1, 12).view(4, 3).to(dtype).requires_grad_()
    weight = torch.linspace(-1, 1, 15).view(5, 3).to(dtype)
    target = torch.tensor([0, 4, 2, 1])
    chosen = options.LinearCrossEntropyOptions()
    loss = functional.linear_cross_entropy(x, weight, target, options=chosen)
    loss.backward()
    return loss.item(), x.grad.tolist()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_loss_in_chunks_is_that_of_the_cpu(dtype):
    with record(as_device="cpu") as trace:
        met = call(dtype)
    assert met == call(dtype)
    assert verify(trace, "cpu").empty


def test_the_cpu_refuses_dtypes_that_differ():
    given = torch.ones(2, 3), torch.ones(4, 3).double(), torch.tensor([0, 1])
    chosen = options.LinearCrossEntropyOptions()
    with pytest.raises(RuntimeError) as wanted:
        functional.linear_cross_entropy(*given, options=chosen)
    with record(as_device="cpu"), pytest.raises(RuntimeError) as met:
        given = torch.ones(2, 3), torch.ones(4, 3).double(), torch.tensor([0, 1])
        functional.linear_cross_entropy(*given, options=chosen)
    assert str(met.value) == str(wanted.value)
