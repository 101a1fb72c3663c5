"""``state="constructed"``: what a module held before anything used it."""

import pytest
import torch
from torch import nn

from meta_magic import MaterializeError, materialize, record
from tests.unit.eager import assert_bit_equal, is_untouched, tensors_of
from tests.unit.materializing.modules import SEQUENCE, TRAINABLE, convolutions


def read_shape(name):
    return (2, 1, 4, 4) if name.startswith("convolutions") else SEQUENCE


def train(model, shape, *, n_steps=2):
    optimizer = torch.optim.AdamW(
        [p for p in model.parameters() if p.requires_grad] or [torch.zeros(1)]
    )
    for _ in range(n_steps):
        loss = model(torch.randn(shape)).square().sum()
        if loss.requires_grad:
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def build_for_real(build):
    """Return what ``build`` gives on the CPU."""
    torch.manual_seed(0)
    real = build()
    torch.manual_seed(0)
    return real


@pytest.mark.parametrize("name", TRAINABLE)
def test_a_trained_module_is_as_a_real_construction_makes_it(name):
    real, next_drawn = build_for_real(lambda: (TRAINABLE[name](), torch.rand(3)))
    with record():
        made = TRAINABLE[name]()
        train(made, read_shape(name))
    materialize(made, state="constructed")
    assert_bit_equal(made, real)
    assert torch.equal(torch.rand(3), next_drawn)


def test_a_training_in_a_later_cell_is_left_out():
    real = build_for_real(convolutions)
    with record():
        made = convolutions()
    with record():
        train(made, (2, 1, 4, 4))
    materialize(made, state="constructed")
    assert_bit_equal(made, real)


def test_what_a_later_cell_initializes_before_any_use_is_in_it():
    def init(model):
        for p in model.parameters():
            nn.init.constant_(p, 3.0)

    real = build_for_real(convolutions)
    init(real)
    with record():
        made = convolutions()
    with record():
        init(made)
        made(torch.randn(2, 1, 4, 4))
    materialize(made, state="constructed")
    assert_bit_equal(made, real)


def test_a_lazy_module_is_as_its_first_call_initialized_it():
    def build():
        model = nn.Sequential(nn.LazyLinear(3), nn.LazyBatchNorm1d())
        model(torch.zeros(2, 4))
        return model

    real = build_for_real(build)
    with record():
        made = build()
        train(made, SEQUENCE)
    materialize(made, state="constructed")
    assert torch.equal(made[0].weight, real[0].weight)
    assert made[1].running_mean.tolist() == [0, 0, 0]
    assert made[1].num_batches_tracked == 0


def test_a_buffer_that_a_call_put_in_place_of_another_is_refused_by_name():
    class Replacing(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("mean", torch.zeros(2))

        def forward(self, x):
            self.mean = self.mean * 0.9 + x.mean(0) * 0.1
            return x - self.mean

    with record():
        made = Replacing()
        made(torch.ones(3, 2))
    before = tensors_of(made)
    message = (
        "it is not known what 'mean' was when it was constructed: what wrote it rests "
        "on what a call of a module computed. Choose state='current', or give the "
        "trace= of a recording that ended before that"
    )
    with pytest.raises(MaterializeError) as caught:
        materialize(made, state="constructed")
    assert str(caught.value) == message
    assert is_untouched(made, before)


def test_a_step_that_is_written_by_hand_counts_as_an_initialization():
    with record():
        weight = nn.ParameterList([torch.ones(2)])
        (weight[0] * 3).sum().backward()
        with torch.no_grad():
            weight[0].sub_(weight[0].grad)
    with pytest.raises(MaterializeError, match="rests on what a backward pass"):
        materialize(weight, state="constructed")


def test_what_was_changed_outside_after_its_use_is_no_harm():
    real = build_for_real(lambda: nn.Linear(2, 3))
    with record():
        made = nn.Linear(2, 3)
        made(torch.ones(1, 2))
    made.weight.data.fill_(7)
    with torch.no_grad():
        made.bias.zero_()
    materialize(made, state="constructed")
    assert_bit_equal(made, real)


def test_what_was_changed_outside_before_any_use_is_refused():
    with record():
        made = nn.Linear(2, 3)
    with torch.no_grad():
        made.bias.zero_()
    with pytest.raises(MaterializeError, match="'bias': it was changed in place"):
        materialize(made, state="constructed")


@pytest.mark.parametrize("init", ["reset", "empty"])
def test_a_state_is_refused_where_nothing_is_replayed(init):
    with pytest.raises(MaterializeError, match="chooses what a replay gives"):
        materialize(nn.Linear(2, 3, device="meta"), init=init, state="constructed")


def test_another_state_is_refused():
    with pytest.raises(MaterializeError) as caught:
        materialize(nn.Linear(2, 3, device="meta"), state="initial")
    wanted = "there is no state='initial': choose 'current' or 'constructed'"
    assert str(caught.value) == wanted


def test_what_a_checkpoint_lacks_is_as_constructed():
    real = build_for_real(convolutions)
    with record():
        made = convolutions()
        train(made, (2, 1, 4, 4))
    state = {k: v for k, v in real.state_dict().items() if not k.startswith("1.")}
    materialize(made, init=state, state="constructed")
    assert_bit_equal(made, real)
