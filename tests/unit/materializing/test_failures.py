"""A materialization that fails or is cancelled leaves the module unchanged."""

import signal

import pytest
import torch
from torch import nn

from meta_magic import MaterializeError, materialize, record
from meta_magic.materializing.fills.inits import INITS
from tests.unit.eager import assert_bit_equal, build_twice, is_untouched, tensors_of
from tests.unit.materializing.modules import recorded


class Cancelled(Exception):
    pass


@pytest.mark.parametrize("error", [Cancelled, KeyboardInterrupt, SystemExit])
@pytest.mark.parametrize("init", [*INITS, "checkpoint"])
@pytest.mark.parametrize("at", [0, 3])
def test_a_cancelled_materialize_leaves_the_module_as_it_was(init, error, at):
    real, made, _, _ = build_twice(lambda: nn.Transformer(8, 2, 1, 1, 16))
    before, state = tensors_of(made), torch.get_rng_state()
    source = dict(real.state_dict()) if init == "checkpoint" else init
    seen = []

    def cancel(fraction):
        seen.append(fraction)
        if len(seen) > at or fraction >= 1:
            raise error

    with pytest.raises(error):
        materialize(made, init=source, progress=cancel)
    assert is_untouched(made, before)
    assert torch.equal(torch.get_rng_state(), state)


def test_a_second_materialize_within_the_first_is_an_error():
    made, other = recorded(), recorded()
    caught = []

    def again(_):
        with pytest.raises(MaterializeError, match="another module is being") as error:
            materialize(other)
        caught.append(error)

    materialize(made, progress=again)
    assert caught


class Failing(nn.Module):
    """Fails to reset itself, after it has begun."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(2, 3)
        self.weight = nn.Parameter(torch.empty(3))
        with torch.device("cpu"):
            self.real = nn.Parameter(torch.ones(2))

    def reset_parameters(self):
        nn.init.zeros_(self.weight)
        nn.init.zeros_(self.real)
        raise ZeroDivisionError("by three")


def test_a_reset_that_fails_is_an_error_that_names_it_and_changes_nothing():
    with record():
        made = Failing()
    before = {n: t for n, t in tensors_of(made).items() if n != "real"}
    message = "reset_parameters of a Failing raised ZeroDivisionError: by three"
    with pytest.raises(MaterializeError, match=message):
        materialize(made, init="reset")
    after = tensors_of(made)
    assert all(after[n] is before[n] and before[n].is_meta for n in before)
    assert made.real.tolist() == [1, 1]
    materialize(made, init="empty")
    assert not made.weight.is_meta


def test_an_interrupt_while_tensors_are_exchanged_leaves_the_module(monkeypatch):
    _, made, _, _ = build_twice(lambda: nn.Linear(2, 2))
    from meta_magic.materializing import preparation

    swap = preparation.swap

    def interrupted(*tensors):
        signal.raise_signal(signal.SIGINT)
        swap(*tensors)

    monkeypatch.setattr(preparation, "swap", interrupted)
    with pytest.raises(KeyboardInterrupt):
        materialize(made)
    assert [p.is_meta for p in made.parameters()] == [True, True]


# The progress that materialize() reports.


@pytest.mark.parametrize("init", [*INITS, "checkpoint"])
def test_progress_never_goes_back_and_ends_at_one(init):
    real, made, _, _ = build_twice(lambda: nn.TransformerEncoderLayer(8, 2, 16))
    fractions = []
    source = dict(real.state_dict()) if init == "checkpoint" else init
    materialize(made, init=source, progress=fractions.append)
    assert fractions == sorted(fractions)
    assert 0 <= fractions[0] <= fractions[-1] == 1


def test_progress_ends_at_one_if_nothing_was_to_be_done():
    fractions = []
    materialize(nn.Linear(3, 4), progress=fractions.append)
    assert fractions[-1:] == [1]


# After ``materialize``: what the user holds is what was filled, or it is said.


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
