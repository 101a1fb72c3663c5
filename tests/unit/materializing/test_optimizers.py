"""Optimizers that stepped in a cell go on as on the CPU once the module is real."""

import pytest
import torch
from torch import nn

from meta_magic import MaterializeError, materialize, record
from meta_magic.materializing.materialize import prepare
from tests.unit.eager import assert_same_tensor

SGD, ADAM = torch.optim.SGD, torch.optim.Adam
OPTIMIZERS = {
    "momentum": lambda p: SGD(p, lr=0.1, momentum=0.9),
    "foreach": lambda p: SGD(p, lr=0.1, momentum=0.9, foreach=True),
    "Adam": lambda p: ADAM(p, lr=0.1),
    "Adam fused": lambda p: ADAM(p, lr=0.1, fused=True),
    "Adam with a tensor": lambda p: ADAM(p, lr=torch.tensor(0.1), foreach=False),
    "AdamW": lambda p: torch.optim.AdamW(p, lr=0.1, amsgrad=True),
    "RMSprop": lambda p: torch.optim.RMSprop(p, momentum=0.5, centered=True),
    "Adagrad": lambda p: torch.optim.Adagrad(p, initial_accumulator_value=0.1),
    "ASGD": torch.optim.ASGD,
    "Rprop": torch.optim.Rprop,
    "LBFGS": lambda p: torch.optim.LBFGS(p, lr=0.1, max_iter=4),
    "Muon": lambda p: torch.optim.Muon([q for q in p if q.ndim == 2], lr=0.1),
}
DATA = torch.arange(12.0).view(4, 3) / 12


def build_model(make_optimizer):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
    return model, make_optimizer(model.parameters())


def train_model(model, optimizer, n_steps, x=DATA):
    """Return the losses of some steps."""
    losses = []

    def close():
        optimizer.zero_grad()
        loss = model(x).square().sum()
        loss.backward()
        losses.append(loss.detach())
        return loss

    for _ in range(n_steps):
        optimizer.step(close)
    return losses


def train_twice(make_optimizer, n_steps=2):
    """Return model and optimizer that were trained for real, and in a cell."""
    real, made = build_model(make_optimizer), None
    train_model(*real, n_steps)
    with record():
        made = build_model(make_optimizer)
        train_model(*made, n_steps, torch.arange(12.0).view(4, 3) / 12)
    return real, made


def assert_goes_on_alike(real, made):
    for wanted, got in zip(train_model(*real, 3), train_model(*made, 3), strict=True):
        assert_same_tensor(got, wanted)
    for wanted, got in zip(real[0].parameters(), made[0].parameters(), strict=True):
        assert_same_tensor(got, wanted)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_training_goes_on_as_on_the_cpu(name):
    real, made = train_twice(OPTIMIZERS[name])
    materialize(made[0])
    assert_goes_on_alike(real, made)


def test_the_state_keeps_its_tensors_and_the_optimizer_its_parameters():
    _, (model, optimizer) = train_twice(OPTIMIZERS["momentum"])
    weight = model[0].weight
    buffer = optimizer.state[weight]["momentum_buffer"]
    report = materialize(model)
    assert optimizer.param_groups[0]["params"][0] is weight
    assert optimizer.state[weight]["momentum_buffer"] is buffer
    assert not buffer.is_meta
    assert "  replay, with it: 4 of optimizers, 4 gradients" in str(report)
    assert ("SGD.state[0.weight]['momentum_buffer']", "state") in [
        (tensor.name, tensor.kind) for tensor in report.tensors
    ]


@pytest.mark.parametrize(
    "given", [{"init": "reset"}, {"init": "empty"}, {"state": "constructed"}]
)
def test_a_state_of_other_values_is_cleared_with_a_word(given):
    _, (model, optimizer) = train_twice(OPTIMIZERS["momentum"])
    report = materialize(model, **given)
    assert not optimizer.state
    assert any("the state of SGD was cleared" in note for note in report.notes)


def test_a_model_as_constructed_trains_as_one_that_was_never_trained():
    real, made = build_model(OPTIMIZERS["Adam"]), train_twice(OPTIMIZERS["Adam"])[1]
    materialize(made[0], state="constructed")
    assert_goes_on_alike(real, made)


def test_what_adagrad_has_from_the_beginning_is_as_in_the_beginning():
    make = OPTIMIZERS["Adagrad"]
    real, made = build_model(make), train_twice(make)[1]
    materialize(made[0], state="constructed")
    assert_goes_on_alike(real, made)


def test_a_cast_casts_the_state_as_load_state_dict_does():
    _, (model, optimizer) = train_twice(OPTIMIZERS["Adam with a tensor"])
    materialize(model, dtype=torch.bfloat16)
    state = optimizer.state[model[0].weight]
    dtypes = {name: tensor.dtype for name, tensor in state.items()}
    assert dtypes == {
        "step": torch.float32,
        "exp_avg": torch.bfloat16,
        "exp_avg_sq": torch.bfloat16,
    }
    assert model[0].weight.grad.dtype == torch.bfloat16
    assert optimizer.param_groups[0]["lr"].dtype == torch.float32


def test_the_budget_counts_the_state():
    with record():
        model = nn.Linear(2**20, 2**9, bias=False)
        optimizer = ADAM(model.parameters())
        model(torch.zeros(1, 2**20)).sum().backward()
        optimizer.step()
    # The weight, its gradient and two moments.
    assert prepare(model).nbytes == 4 * 4 * 2**29


def test_a_cancel_at_the_end_puts_state_and_gradients_back():
    _, (model, optimizer) = train_twice(OPTIMIZERS["momentum"])
    gradient, kept = model[0].weight.grad, []
    model.refused = kept
    kept.append(model[2].bias)
    reference = torch._C._WeakTensorRef(model[2].bias)
    with pytest.raises(MaterializeError, match="refers to it weakly"):
        materialize(model)
    held = [s["momentum_buffer"] for s in optimizer.state.values()]
    assert all(tensor.is_meta for tensor in [*model.parameters(), *held])
    assert model[0].weight.grad is gradient
    assert gradient.is_meta
    del reference


def build_with_scheduler():
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    optimizer = SGD(model.parameters(), lr=torch.tensor(0.1), momentum=0.9)
    averaged = torch.optim.swa_utils.AveragedModel(model)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    return model, optimizer, averaged, scaler, scheduler


def train_scaled(parts, x, n_steps=2):
    model, optimizer, averaged, scaler, scheduler = parts
    for _ in range(n_steps):
        optimizer.zero_grad()
        scaler.scale(model(x).square().sum()).backward()
        scaler.step(optimizer)
        scaler.update()
        scheduler.step()
        averaged.update_parameters(model)
    return parts


def test_schedulers_scalers_and_averages_go_on_as_on_the_cpu():
    real = train_scaled(build_with_scheduler(), torch.ones(4, 3))
    with record():
        made = train_scaled(build_with_scheduler(), torch.ones(4, 3))
    report = materialize(made[0])
    assert "made[2]" in report.on_meta
    materialize(made[2])
    for parts in (real, made):
        train_scaled(parts, torch.ones(4, 3))
    assert made[3].get_scale() == real[3].get_scale()
    assert torch.equal(made[4].get_last_lr()[0], real[4].get_last_lr()[0])
    for name, tensor in real[2].state_dict().items():
        assert_same_tensor(made[2].state_dict()[name], tensor, name)
