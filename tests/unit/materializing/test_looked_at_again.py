"""After ``materialize``: what the user holds is what was filled, or it is said."""

import pytest
import torch
from torch import nn

from meta_magic import MaterializeError, materialize, record
from tests.unit.eager import assert_bit_equal, build_twice, tensors_of
from tests.unit.materializing.modules import register


class Registering(nn.Module):
    """Puts other parameters into place while it is walked, as peft's attention does."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(3))

    def named_modules(self, *args, **kwargs):
        weight = self.weight
        del self.weight
        self.register_parameter("weight", nn.Parameter(weight.data))
        return super().named_modules(*args, **kwargs)


class Resetting(nn.Module):
    """Makes its parameter anew when it is reset."""

    def __init__(self, device=None):
        super().__init__()
        self.device = device
        self.weight = nn.Parameter(torch.randn(3))

    def reset_parameters(self):
        self.weight = nn.Parameter(torch.ones(3, device=self.device))


def test_a_module_that_registers_while_it_is_walked_gets_its_values():
    real, made, _, _ = build_twice(Registering)
    report = materialize(made)
    assert report.notes == ()
    assert_bit_equal(made, real)


def test_a_module_that_registers_while_it_is_walked_is_real_within_another():
    real, made, _, _ = build_twice(lambda: nn.Sequential(Registering(), Registering()))
    materialize(made)
    assert_bit_equal(made, real)


def test_a_parameter_that_is_on_meta_afterwards_is_an_error_and_all_is_put_back():
    with record():
        made = nn.Sequential(nn.Linear(2, 2), Resetting("meta"))
    first = made[0].weight
    with pytest.raises(MaterializeError, match=r"'1.weight' would still be on meta"):
        materialize(made, init="reset")
    assert first is made[0].weight
    assert {tensor.is_meta for tensor in tensors_of(made).values()} == {True}


def test_a_parameter_that_the_module_replaced_is_named():
    with record():
        made = Resetting()
    report = materialize(made, init="reset")
    assert made.weight.tolist() == [1, 1, 1]
    assert "weight is not the tensor that was filled" in str(report)


def written_split():
    parameter = nn.Parameter(torch.zeros(6))
    with torch.no_grad():
        first, second = parameter.split(3)
        first.fill_(1)
        second.fill_(2)
    return parameter, second


def written_base(make_view):
    parameter = nn.Parameter(torch.zeros(2, 3))
    view = make_view(parameter)
    with torch.no_grad():
        parameter.add_(1)
    return parameter, view


def view_without_gradient(parameter):
    with torch.no_grad():
        return parameter[1]


VIEWS = {
    "split and written": written_split,
    "output of split": lambda: written_base(lambda p: p.split(1)[1]),
    "output of unbind": lambda: written_base(lambda p: p.unbind()[1]),
    "made under no_grad": lambda: written_base(view_without_gradient),
}


@pytest.mark.parametrize("name", VIEWS)
def test_a_view_without_a_gradient_of_its_own_gets_its_values(name):
    def build():
        module = nn.Module()
        module.parameter, module.view = VIEWS[name]()
        return module

    real, made, _, _ = build_twice(build)
    materialize(made)
    assert torch.equal(made.view, real.view)
    assert_bit_equal(made, real)


def double_and_retain(module):
    module.out = module.weight * 2
    module.out.retain_grad()
    return module


def test_a_tensor_whose_gradient_is_retained_is_made_real():
    real, made, _, _ = build_twice(lambda: double_and_retain(nn.Linear(2, 2)))
    materialize(made)
    assert torch.equal(made.out, real.out)
    assert made.out.requires_grad


def test_a_view_without_history_of_such_a_tensor_wants_a_gradient_as_on_the_cpu():
    def build():
        module = double_and_retain(nn.Linear(2, 2))
        with torch.no_grad():
            module.view = module.out.view(4)
        return module

    real, made, _, _ = build_twice(build)
    materialize(made)
    assert made.view.requires_grad == real.view.requires_grad


def test_integers_that_were_written_with_what_wants_a_gradient_are_made_real():
    def build():
        module = nn.Linear(2, 2)
        module.out = torch.ones(2, 2, dtype=torch.long)
        module.out[torch.arange(2) > 0] = module.weight[0, 0]
        return module

    real, made, _, _ = build_twice(build)
    assert made.out.requires_grad
    materialize(made)
    assert torch.equal(made.out, real.out)


def test_a_gradient_that_was_retained_is_dropped_with_a_word():
    with record():
        made = double_and_retain(nn.Linear(2, 2))
        made.out.sum().backward()
        made.weight.grad = None
    assert materialize(made).notes == ("1 gradients were dropped",)


def test_a_tensor_that_is_put_back_still_retains_its_gradient():
    with record():
        made = double_and_retain(nn.Linear(2, 2))
        made.refused = torch.ones(2)
    n_writes = made.out._version
    kept = torch._C._WeakTensorRef(made.refused)
    with pytest.raises(MaterializeError, match="exchange 'refused'"):
        materialize(made)
    assert made.out.is_meta
    assert made.out.retains_grad
    assert made.out._version == n_writes
    (made.out * made.out).sum().backward()
    assert made.out.grad.shape == made.weight.grad.shape == (2, 2)
    del kept


def test_a_parameter_to_which_torch_refers_weakly_is_refused_by_name():
    with record():
        made = nn.Linear(2, 2)
    kept = torch._C._WeakTensorRef(made.bias)
    with pytest.raises(MaterializeError, match="exchange 'bias'"):
        materialize(made)
    del kept
    materialize(made)
    assert not made.bias.is_meta


def test_a_tensor_whose_graph_is_gone_is_made_real():
    with record():
        x = torch.ones(2, requires_grad=True)
        y = x * 2
        y.retain_grad()
        made = register(y.detach())
    materialize(made)
    assert made.buffer.tolist() == [2, 2]
