"""Operations element by element: counted apart, by weights."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from meta_magic import record
from meta_magic.trace.formulas.elementwise_flops import INITIALIZERS, WEIGHT_BY_OP

N = 2 * 3


def R(*shape):
    return torch.randn(*shape)


def count(run):
    with record(as_device="cpu") as trace:
        run()
    assert trace.cost.unknown == ()
    return trace.cost.total.n_elementwise


CASES = {
    "add": (lambda: R(2, 3) + R(2, 3), N),
    "in place": (lambda: R(2, 3).add_(1), N),
    # Each of 2 x 3 results.
    "broadcast": (lambda: R(2, 1) * R(1, 3), N),
    "a view": (lambda: R(2, 3).t(), 0),
    "a copy": (lambda: R(2, 3).t().contiguous(), 0),
    "made": (lambda: torch.zeros(2, 3), 0),
    "initialized": (lambda: nn.init.trunc_normal_(torch.empty(2, 3)), 0),
    "sum": (lambda: R(2, 3).sum(), N),
    # Greatest, difference, exp, sum, quotient.
    "softmax": (lambda: R(2, 3).softmax(-1), 5 * N),
    # Sum, difference, square, sum; difference, scale, weight, bias.
    "layer norm": (lambda: F.layer_norm(R(2, 3), (3,), R(3), R(3)), 8 * N),
    # x by the root of 2, erf, plus 1, by x, by a half.
    "gelu": (lambda: F.gelu(R(2, 3)), 5 * N),
    # Of each of 9 windows of 2 x 2.
    "pooling": (lambda: F.max_pool2d(R(1, 1, 6, 6), 2), 9 * 4),
    # The rows that are added up, not the table.
    "index_add": (lambda: R(100, 3).index_add_(0, torch.tensor([1, 2]), R(2, 3)), N),
    # One of each row is looked up.
    "nll": (lambda: F.nll_loss(R(2, 3), torch.tensor([0, 1])), 2),
    # 8 log 8 comparisons.
    "sort": (lambda: R(8).sort(), 8 * 3),
}


@pytest.mark.parametrize("name", CASES)
def test_operations_are_one_for_each_function_and_element(name):
    run, wanted = CASES[name]
    assert count(run) == wanted


@pytest.mark.parametrize("settings", [{"foreach": True}, {"foreach": False}])
def test_foreach_counts_what_one_after_the_other_does(settings):
    def run(foreach):
        parameters = [R(4, 3).requires_grad_(), R(5).requires_grad_()]
        for parameter in parameters:
            parameter.sum().backward()
        torch.optim.SGD(parameters, lr=0.1, momentum=0.9, foreach=foreach).step()

    assert count(lambda: run(settings["foreach"])) == count(lambda: run(None))


def test_a_fused_optimizer_counts_for_each_parameter():
    def run(*, steps):
        parameters = [R(4, 3).requires_grad_(), R(5).requires_grad_()]
        for parameter in parameters:
            parameter.sum().backward()
        if steps:
            torch.optim.AdamW(parameters, fused=True).step()

    n_steps = 2  # counters, of which there is one for each parameter
    assert count(lambda: run(steps=True)) - count(lambda: run(steps=False)) == (
        WEIGHT_BY_OP["aten._fused_adamw"] * (4 * 3 + 5) + n_steps
    )


@pytest.mark.skipif(
    not torch.__version__.startswith("2.13."), reason="operators come and go"
)
def test_each_operator_of_the_table_is_one_of_torchs():
    ops = set(WEIGHT_BY_OP) - {INITIALIZERS}
    missing = {op for op in ops if not hasattr(torch.ops.aten, op[5:])}
    assert missing == set()
