"""Gradients of products, which look for zeros on the CPU."""

import pytest
import torch
from torch import nn

from meta_magic import ValueLimits, record, replay

VALUES = {
    "no zero": [[0.3, 0.7, 1.1], [-2.0, 0.9, 0.1]],
    "a zero": [[0.3, 0.0, 1.1], [-2.0, 0.9, 0.1]],
    "zeros": [[0.3, 0.0, 1.1], [0.0, 0.0, 0.1]],
    "one row": [[0.3, 0.7, 1.1]],
    "one number": [[0.3]],
}
PRODUCTS = {
    "all": lambda a: a.prod(),
    "dim": lambda a: a.prod(0).sum(),
    "last dim": lambda a: a.prod(-1).square().sum(),
    "other layout": lambda a: a.t().prod(),
    "other dtype": lambda a: a.prod(1, dtype=torch.float64).sum(),
    "complex": lambda a: (torch.complex(a, a) * (1 + 2j)).prod().abs(),
    "twice": lambda a: differentiate(a.prod() + a.prod(1).sum(), a).square().sum(),
    "checkpoint": lambda a: torch.utils.checkpoint.checkpoint(
        lambda b: (b * 2).prod(), a, use_reentrant=False
    ),
}


def differentiate(loss, a):
    return torch.autograd.grad(loss, a, create_graph=True)[0]


def run(values, product):
    a = torch.tensor(values, requires_grad=True)
    product(a).backward()
    return a.grad


@pytest.mark.parametrize("values", VALUES.values(), ids=VALUES)
@pytest.mark.parametrize("product", PRODUCTS.values(), ids=PRODUCTS)
def test_they_are_equal_to_the_bit(values, product):
    wanted = run(values, product)
    with record() as trace:
        found = run(values, product)
    assert found.stride() == wanted.stride()
    assert torch.equal(replay(trace, found).nan_to_num(), wanted.nan_to_num())


def dual(a):
    with torch.autograd.forward_ad.dual_level():
        made = torch.autograd.forward_ad.make_dual(a.requires_grad_(), torch.ones(2, 3))
        return torch.autograd.forward_ad.unpack_dual(made.prod()).tangent.detach()


TRANSFORMS = {
    "grad": torch.func.grad(torch.prod),
    "vmap": torch.func.vmap(torch.func.grad(torch.prod)),
    "jvp": lambda a: torch.func.jvp(torch.prod, (a,), (a,))[1],
    "dual": dual,
}


@pytest.mark.parametrize("transform", TRANSFORMS.values(), ids=TRANSFORMS)
def test_transforms_differentiate_them(transform):
    def call():
        torch.manual_seed(0)
        return transform(torch.rand(2, 3) + 1)

    with record() as trace:
        found = call()
    torch.testing.assert_close(replay(trace, found), call())


def test_where_no_value_is_to_be_had_it_multiplies_the_others():
    with record(limits=ValueLimits(nbytes=1)) as trace:
        layer = nn.Linear(3, 4)
        layer(torch.ones(2, 3)).prod().backward()
    assert "aten.cumprod.default" in [call.op for call in trace.ops]
    assert layer.weight.grad.shape == (4, 3)
    assert any("last bits may differ" in text for text, _ in trace.program.caveats)
