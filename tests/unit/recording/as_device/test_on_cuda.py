"""What is recorded as on CUDA: the operators of a run on an H100 with torch 2.11."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from meta_magic import record

ATTENTION = "_scaled_dot_product_efficient_attention"


def differentiate(made):
    """Run the backward pass of a sum, and return the sum."""
    total = made.sum()
    total.backward()
    return total


def make(*shape):
    return torch.randn(*shape, requires_grad=True)


def attend(heads=4, keys=4, width=8, values=8, mask=None):
    q, k, v = (
        make(2, heads, 5, width),
        make(2, keys, 5, width),
        make(2, keys, 5, values),
    )
    return F.scaled_dot_product_attention(q, k, v, mask, enable_gqa=heads != keys)


PROGRAMS = {
    "a dropout": (lambda: F.dropout(make(3, 4), 0.5), "native_dropout"),
    "a batch norm": (lambda: nn.BatchNorm2d(3)(make(2, 3, 4, 4)), "cudnn_batch_norm"),
    "an instance norm": (
        lambda: nn.InstanceNorm2d(3, affine=True)(make(2, 3, 4, 4)),
        "cudnn_batch_norm",
    ),
    "a root mean square": (lambda: nn.RMSNorm(6)(make(2, 6)), "_fused_rms_norm"),
    "values of another size": (lambda: attend(values=16), ATTENTION),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_runs_the_operator_of_cuda_and_its_gradient(name):
    program, operator = PROGRAMS[name]
    with record(as_device="cuda") as trace:
        differentiate(program())
    names = [op.op.split(".")[1] for op in trace.ops]
    assert operator in names
    assert f"{operator}_backward" in names


@pytest.mark.parametrize("name", PROGRAMS)
def test_on_the_cpu_it_is_composed_of_others(name):
    program, operator = PROGRAMS[name]
    with record(as_device="cpu") as trace:
        differentiate(program())
    assert operator not in {op.op.split(".")[1] for op in trace.ops}


WITHOUT = {
    "a batch norm without images": lambda: nn.BatchNorm1d(3)(make(5, 3)),
    "a batch norm of bfloat16": lambda: nn.BatchNorm2d(3).bfloat16()(
        make(2, 3, 4, 4).bfloat16()
    ),
    "a batch norm without parameters": lambda: nn.BatchNorm2d(3, affine=False)(
        make(2, 3, 4, 4)
    ),
    "a dropout of nothing": lambda: F.dropout(make(3, 4), 0.0),
    "a mask that is trained": lambda: attend(mask=make(4, 5, 5)),
    "heads in groups": lambda: attend(keys=2),
    "heads of an odd size": lambda: attend(width=7, values=7),
}


@pytest.mark.parametrize("name", WITHOUT)
def test_what_the_fused_operators_do_not_take_runs_others(name):
    with record(as_device="cuda") as trace:
        differentiate(WITHOUT[name]())
    names = {op.op.split(".")[1] for op in trace.ops}
    assert names.isdisjoint({operator for _, operator in PROGRAMS.values()})


def test_a_mask_is_padded_to_a_multiple_of_eight():
    # 1 x 12 x 197 x 197, of a vision transformer, became 1 x 12 x 197 x 200.
    with record(as_device="cuda") as trace:
        attend(mask=torch.randn(2, 4, 5, 5))
    (padded,) = (op for op in trace.ops if op.op == "aten.constant_pad_nd.default")
    assert padded.outputs[0].shape == (2, 4, 5, 8)


NORMS = {
    "a batch norm": lambda: nn.BatchNorm2d(3),
    "a batch norm in eval mode": lambda: nn.BatchNorm2d(3).eval(),
    "a root mean square": lambda: nn.RMSNorm(4),
}


@pytest.mark.parametrize("name", NORMS)
def test_values_are_those_of_the_cpu(name):
    def run():
        torch.manual_seed(3)
        a, norm = make(2, 3, 4, 4), NORMS[name]()
        made = norm(a)
        (made * made).sum().backward()
        gradients = [a.grad, *(p.grad for p in norm.parameters())]
        return [t.tolist() for t in (made.detach(), *gradients, *norm.buffers())]

    wanted = run()
    with record(as_device="cuda"):
        met = run()
    for one, other in zip(met, wanted, strict=True):
        assert torch.allclose(torch.tensor(one), torch.tensor(other), atol=1e-5)


HALVED = {
    **NORMS,
    "a layer norm": lambda: nn.LayerNorm(4),
    "a layer norm without parameters": lambda: nn.LayerNorm(
        4, elementwise_affine=False
    ),
}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", HALVED)
def test_losses_of_norms_in_half_precision_are_those_of_the_cpu(name, dtype):
    def run():
        torch.manual_seed(7)
        norm, a = HALVED[name]().to(dtype), torch.randn(2, 3, 5, 4).to(dtype)
        a.requires_grad_()
        loss = norm(a).float().pow(2).sum()
        loss.backward()
        return loss.item(), a.grad.float().tolist()

    wanted = run()
    with record(as_device="cuda"):
        met = run()
    assert met[0] == pytest.approx(wanted[0])
    assert torch.allclose(torch.tensor(met[1]), torch.tensor(wanted[1]), atol=1e-3)
