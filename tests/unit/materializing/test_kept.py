"""What materialize() keeps of a module: objects, ties, strides, hooks, optimizers."""

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, parametrize, prune

from meta_magic import materialize, record
from meta_magic.materializing import materialize as materializing
from meta_magic.materializing.fills.inits import INITS
from tests.unit.eager import assert_bit_equal, build_twice, tensors_of
from tests.unit.materializing.modules import Masked, Shared, Tied


def test_tensors_stay_the_same_objects():
    _, made, _, _ = build_twice(Masked)
    before = {**tensors_of(made), "scale": made.scale, "listed": made.listed[0]}
    materialize(made)
    after = {**tensors_of(made), "scale": made.scale, "listed": made.listed[0]}
    assert all(after[name] is before[name] for name in before)


@pytest.mark.parametrize("init", INITS)
def test_a_tie_is_kept(init):
    _, made, _, _ = build_twice(Tied)
    report = materialize(made, init=init)
    assert made.head.weight is made.embed.weight
    assert report.ties == (("head.weight", "embed.weight"),)


@pytest.mark.parametrize("init", ["replay", "empty"])
def test_views_of_one_storage_stay_views_of_one_storage(init):
    _, made, _, _ = build_twice(Shared)
    materialize(made, init=init)
    with torch.no_grad():
        made.upper.fill_(5)
    assert made.matrix[:2, 0].tolist() == [5, 5]
    assert made.matrix.stride() == (1, 3)


def test_a_shared_submodule_is_reported_at_both_places():
    def build():
        linear = nn.Linear(2, 2)
        return nn.Sequential(linear, linear)

    real, made, _, _ = build_twice(build)
    report = materialize(made)
    assert_bit_equal(made, real)
    assert report.ties == (("1.weight", "0.weight"), ("1.bias", "0.bias"))


@pytest.mark.parametrize("init", INITS)
def test_strides_are_kept(init):
    _, made, _, _ = build_twice(
        lambda: nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last)
    )
    materialize(made, init=init)
    assert made.weight.stride() == (27, 1, 9, 3)


def test_requires_grad_is_kept():
    _, made, _, _ = build_twice(lambda: nn.Linear(3, 4))
    made.weight.requires_grad_(False)
    materialize(made)
    assert (made.weight.requires_grad, made.bias.requires_grad) == (False, True)


def test_a_real_tensor_is_not_touched():
    with record():
        made = nn.Linear(3, 4)
    made.bias = nn.Parameter(torch.arange(4.0))
    address, version = made.bias.data_ptr(), made.bias._version
    report = materialize(made)
    assert (made.bias.data_ptr(), made.bias._version) == (address, version)
    assert report.names("kept") == ("bias",)


def test_a_second_time_nothing_is_done():
    _, made, _, _ = build_twice(lambda: nn.Linear(3, 4))
    materialize(made)
    address = made.weight.data_ptr()
    report = materialize(made)
    assert made.weight.data_ptr() == address
    assert report.names("kept") == ("weight", "bias")


# Hooks, parametrizations, optimizers and graphs of a module that became real.


def test_a_tensor_hook_is_kept():
    _, made, _, _ = build_twice(lambda: nn.Linear(3, 4))
    seen = []
    made.weight.register_hook(lambda grad: seen.append(tuple(grad.shape)))
    materialize(made)
    made(torch.ones(2, 3)).sum().backward()
    assert seen == [(4, 3)]


WRAPPED = {
    "weight norm": lambda: parametrizations.weight_norm(nn.Linear(4, 4)),
    "old weight norm": lambda: nn.utils.weight_norm(nn.Linear(4, 4)),
    "pruned": lambda: prune.random_unstructured(nn.Linear(4, 4), "weight", 0.5),
}


@pytest.mark.parametrize("name", WRAPPED)
def test_a_parametrization_goes_on_working(name):
    real, made, _, _ = build_twice(WRAPPED[name])
    materialize(made)
    is_registered = name == "weight norm"
    assert parametrize.is_parametrized(made, "weight") == is_registered
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
