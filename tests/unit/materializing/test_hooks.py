"""Hooks, parametrizations, optimizers and graphs of a module that became real."""

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, parametrize, prune

from meta_magic import materialize, record
from meta_magic.materializing import materialize as materializing
from tests.unit.eager import assert_bit_equal, build_twice


def test_a_tensor_hook_is_kept():
    _, made, _, _ = build_twice(lambda: nn.Linear(3, 4))
    seen = []
    made.weight.register_hook(lambda grad: seen.append(tuple(grad.shape)))
    materialize(made)
    made(torch.ones(2, 3)).sum().backward()
    assert seen == [(4, 3)]


def test_a_hook_that_changes_the_gradient_does_so_once():
    _, made, _, _ = build_twice(lambda: nn.Linear(3, 4))
    made.bias.register_hook(lambda grad: grad * 10)
    materialize(made)
    made(torch.ones(2, 3)).sum().backward()
    assert made.bias.grad.tolist() == [20] * 4


def test_a_hook_can_be_removed_afterwards():
    _, made, _, _ = build_twice(lambda: nn.Linear(3, 4))
    seen = []
    handle = made.bias.register_hook(seen.append)
    materialize(made)
    handle.remove()
    made(torch.ones(2, 3)).sum().backward()
    assert seen == []


def test_a_hook_after_accumulation_is_kept():
    _, made, _, _ = build_twice(lambda: nn.Linear(3, 4))
    seen = []
    made.bias.register_post_accumulate_grad_hook(lambda p: seen.append(p.grad.tolist()))
    materialize(made)
    made(torch.ones(2, 3)).sum().backward()
    assert seen == [[2] * 4]


def test_hooks_of_modules_are_kept():
    _, made, _, _ = build_twice(lambda: nn.Linear(3, 4))
    seen = []
    made.register_forward_pre_hook(lambda *_: seen.append("before"))
    made.register_forward_hook(lambda *_: seen.append("after"))
    made.register_full_backward_hook(lambda *_: seen.append("backward"))
    materialize(made)
    made(torch.ones(2, 3, requires_grad=True)).sum().backward()
    assert seen == ["before", "after", "backward"]


def test_a_parametrization_goes_on_working():
    real, made, _, _ = build_twice(
        lambda: parametrizations.weight_norm(nn.Linear(3, 4))
    )
    materialize(made)
    assert parametrize.is_parametrized(made, "weight")
    assert torch.equal(made(torch.ones(3)), real(torch.ones(3)))


def test_a_parametrization_can_be_removed_afterwards():
    real, made, _, _ = build_twice(
        lambda: parametrizations.weight_norm(nn.Linear(3, 4))
    )
    materialize(made)
    parametrize.remove_parametrizations(made, "weight")
    assert torch.equal(made.weight, real.weight)


def test_the_old_weight_norm_goes_on_working():
    real, made, _, _ = build_twice(lambda: nn.utils.weight_norm(nn.Linear(3, 4)))
    materialize(made)
    assert torch.equal(made(torch.ones(3)), real(torch.ones(3)))


def test_a_pruned_module_goes_on_working():
    def build():
        return prune.random_unstructured(nn.Linear(4, 4), "weight", 0.5)

    real, made, _, _ = build_twice(build)
    materialize(made)
    assert torch.equal(made(torch.ones(4)), real(torch.ones(4)))


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.AdamW])
def test_an_optimizer_made_before_steps_the_real_tensors(kind):
    real, made, _, _ = build_twice(lambda: nn.Linear(3, 4))
    optimizer, wanted = kind(made.parameters(), lr=0.1), kind(real.parameters(), lr=0.1)
    materialize(made)
    for module, stepping in ((made, optimizer), (real, wanted)):
        module(torch.arange(6.0).view(2, 3)).pow(2).sum().backward()
        stepping.step()
    assert_bit_equal(made, real)


def test_a_graph_that_is_alive_does_not_matter():
    with record():
        made = nn.Linear(3, 4)
        loss = made(torch.ones(2, 3)).sum()
    materialize(made)
    made(torch.ones(2, 3)).sum().backward()
    assert loss.grad_fn is not None
    assert made.bias.grad.tolist() == [2] * 4


def test_backward_through_the_old_graph_puts_no_gradient_on_the_real_tensor():
    with record():
        made = nn.Linear(3, 4)
        loss = made(torch.ones(2, 3)).sum()
    materialize(made)
    with record():
        loss.backward()
    assert made.bias.grad is None or not made.bias.grad.is_meta


def backward(build=lambda: nn.Linear(3, 4)):
    """Return a layer with gradients."""
    made = build()
    made(torch.randn(2, 3)).sum().backward()
    return made


def test_gradients_are_made_real_with_what_they_are_of():
    real, made, _, _ = build_twice(backward)
    gradient = made.weight.grad
    report = materialize(made)
    assert made.weight.grad is gradient
    assert torch.equal(gradient, real.weight.grad)
    assert torch.equal(made.bias.grad, real.bias.grad)
    assert report.notes == ()
    assert "  replay, with it: 2 gradients" in str(report).splitlines()


def test_gradients_that_take_too_long_are_dropped_with_the_reason(monkeypatch):
    monkeypatch.setattr(materializing, "PATIENCE", -1.0)
    real, made, _, _ = build_twice(backward)
    report = materialize(made)
    assert_bit_equal(made, real)
    assert made.weight.grad is None
    assert report.notes == (
        "gradients were left out: that takes less than a second more",
        "2 gradients were dropped",
    )


@pytest.mark.parametrize(
    "given", [{"init": "reset"}, {"init": "empty"}, {"state": "constructed"}]
)
def test_gradients_of_other_values_are_dropped_and_counted(given):
    _, made, _, _ = build_twice(backward)
    report = materialize(made, **given)
    assert made.weight.grad is None
    assert "2 gradients were dropped" in report.notes
