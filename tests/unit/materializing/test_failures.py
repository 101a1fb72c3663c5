"""Failure in the middle of materialize(): the module is as it was."""

import signal

import pytest
import torch
from torch import nn

from meta_magic import MaterializeError, materialize, record
from meta_magic.materializing.fills.inits import INITS
from tests.unit.eager import assert_bit_equal, build_twice, is_untouched, tensors_of
from tests.unit.materializing.refusals import build, recorded


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


def test_a_cancelled_materialize_can_be_done_again():
    real, made, _, state = build_twice(build)

    def cancel(_):
        raise Cancelled

    with pytest.raises(Cancelled):
        materialize(made, progress=cancel)
    materialize(made)
    assert_bit_equal(made, real)
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


def test_a_reset_that_fails_is_an_error_that_names_it():
    with record():
        made = Failing()
    with pytest.raises(MaterializeError) as caught:
        materialize(made, init="reset")
    assert "reset_parameters of a Failing raised ZeroDivisionError: by three" in str(
        caught.value
    )


def test_a_reset_that_fails_leaves_the_module_as_it_was():
    with record():
        made = Failing()
    before = {n: t for n, t in tensors_of(made).items() if n != "real"}
    with pytest.raises(MaterializeError):
        materialize(made, init="reset")
    after = {n: t for n, t in tensors_of(made).items() if n != "real"}
    assert all(after[n] is before[n] and before[n].is_meta for n in before)


def test_a_reset_that_fails_leaves_real_tensors_as_they_were():
    with record():
        made = Failing()
    with pytest.raises(MaterializeError):
        materialize(made, init="reset")
    assert made.real.tolist() == [1, 1]


def test_a_module_whose_reset_failed_can_be_materialized():
    with record():
        made = Failing()
    with pytest.raises(MaterializeError):
        materialize(made, init="reset")
    materialize(made, init="empty")
    assert not made.weight.is_meta


def test_a_reset_that_is_interrupted_leaves_the_module_as_it_was():
    class Interrupted(nn.Linear):
        def reset_parameters(self):
            if not self.weight.is_meta:
                raise KeyboardInterrupt
            super().reset_parameters()

    with record():
        made = Interrupted(2, 3)
    before = tensors_of(made)
    with pytest.raises(KeyboardInterrupt):
        materialize(made, init="reset")
    assert is_untouched(made, before)


def test_a_reset_that_wants_arguments_is_an_error_that_names_it():
    class Demanding(nn.Linear):
        def reset_parameters(self, gain=None):
            if gain is None and not self.weight.is_meta:
                raise TypeError("gain is missing")

    with record():
        made = Demanding(2, 3)
    with pytest.raises(MaterializeError, match="of a Demanding raised TypeError"):
        materialize(made, init="reset")


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
