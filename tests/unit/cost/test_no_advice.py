"""Programs that are right get no advice, however like a mistake they look."""

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from meta_magic import record
from meta_magic.cost.advice.advisors import find_advice


def make_model():
    return nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))


def keep_one_loss():
    return make_model()(torch.randn(8, 64)).sum()


def add_up_losses():
    model, total = make_model(), torch.zeros(())
    for _ in range(4):
        total = total + model(torch.randn(8, 64)).sum()
    return total


def stack_losses():
    model = make_model()
    return torch.stack([model(torch.randn(8, 64)).sum() for _ in range(4)]).mean()


def compare_three():
    model = make_model()
    anchor = model(torch.randn(8, 64))
    positive = model(torch.randn(8, 64))
    negative = model(torch.randn(8, 64))
    return anchor, positive, negative


def recur():
    cell, state = nn.RNNCell(8, 8), torch.zeros(4, 8)
    states = []
    for _ in range(6):
        state = cell(torch.randn(4, 8), state)
        states.append(state)
    return states


def keep_losses_after_backward():
    model, losses = make_model(), []
    for _ in range(4):
        loss = model(torch.randn(8, 64)).sum()
        loss.backward()
        losses.append(loss)
    return losses


def keep_outputs_of_training():
    """Their storages are saved for backward, and listed on purpose."""
    model, outputs = make_model(), []
    for _ in range(4):
        y = model(torch.randn(8, 64))
        y.square().mean().backward()
        outputs.append(y.detach())
    return model, outputs


def copy_before_a_write():
    x = torch.randn(8, 8)
    y = x.clone()
    y[0] = 0
    z = x.clone()
    x.zero_()
    return y.sum() + z.sum()


def copy_to_keep():
    model = make_model()
    return model, {name: t.clone() for name, t in model.state_dict().items()}


def copy_a_part_and_free_the_rest():
    return torch.randn(1000, 64)[:1].clone()


def copy_to_another_layout():
    return torch.randn(8, 8).t().contiguous().sum()


def begin_momentum():
    """SGD clones the first gradient: its own code, and its own matter."""
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    model(torch.randn(8, 64)).sum().backward()
    optimizer.step()
    return model, optimizer


def cast_on_purpose():
    model = make_model().bfloat16()
    logits = model(torch.randn(8, 64).bfloat16()).float()
    return (logits - logits.mean()).square().sum()


def add_up_in_float64():
    total = torch.zeros(10, dtype=torch.float64)
    for _ in range(3):
        total += torch.randn(10)
    return total


def autocast():
    model = make_model()
    with torch.autocast("cpu", torch.bfloat16):
        hidden = model[0](torch.randn(8, 64))
        loss = (hidden + torch.randn(8, 128)).float().sum()
    loss.backward()
    return model


def gradients_for_the_next_cell():
    model = make_model()
    model(torch.randn(8, 64)).sum().backward()
    return model


def train_two_against_each_other():
    maker, judge = nn.Linear(16, 64), make_model()
    steps = [torch.optim.Adam(m.parameters()) for m in (maker, judge)]
    for _ in range(2):
        for step in steps:
            step.zero_grad()
            judge(maker(torch.randn(8, 16))).sum().backward()
            step.step()
    return maker, judge


def tune_a_part():
    body, head = make_model(), nn.Linear(10, 2)
    body.requires_grad_(requires_grad=False)
    optimizer = torch.optim.AdamW(head.parameters())
    head(body(torch.randn(8, 64))).sum().backward()
    optimizer.step()
    return body, head


def assign_gradients():
    model = make_model()
    parameters = [*model.parameters()]
    gradients = torch.autograd.grad(model(torch.randn(8, 64)).sum(), parameters)
    for parameter, gradient in zip(parameters, gradients, strict=True):
        parameter.grad = gradient
    torch.optim.Adam(parameters).step()
    return model


def second_order():
    model, x = make_model(), torch.randn(8, 64, requires_grad=True)
    (gradient,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
    gradient.square().sum().backward()
    return model


def clip():
    body, head = make_model(), nn.Linear(10, 2)
    optimizer = torch.optim.AdamW(head.parameters())
    head(body(torch.randn(8, 64))).sum().backward()
    nn.utils.clip_grad_norm_(body.parameters(), 1.0)
    optimizer.step()
    return body, head


def checkpoint_layers():
    layers = nn.ModuleList(nn.Linear(64, 64) for _ in range(3))
    x = torch.randn(8, 64, requires_grad=True)
    for layer in layers:
        x = checkpoint(layer, x, use_reentrant=True)
    x.sum().backward()
    return layers


RIGHT = (
    *(keep_one_loss, add_up_losses, stack_losses, compare_three, recur),
    *(keep_losses_after_backward, keep_outputs_of_training, copy_before_a_write),
    *(copy_to_keep, copy_a_part_and_free_the_rest, copy_to_another_layout),
    *(begin_momentum, cast_on_purpose, add_up_in_float64, autocast, clip),
    *(gradients_for_the_next_cell, train_two_against_each_other, tune_a_part),
    *(assign_gradients, second_order, checkpoint_layers),
)


@pytest.mark.parametrize("run", RIGHT, ids=lambda run: run.__name__)
def test_no_advice_on_what_is_right(run):
    with record(as_device="cpu") as trace:
        kept = run()
    del kept
    assert find_advice(trace) == ()


@pytest.mark.parametrize(
    "fail",
    [
        lambda: torch.ones(2) @ torch.ones(3),
        lambda: torch.ones(2).clone(memory_format=torch.channels_last),
        lambda: torch.ones(2).softmax(5),
        lambda: torch.zeros(-1),
    ],
)
def test_no_advice_on_what_failed_at_once(fail):
    with pytest.raises((RuntimeError, IndexError)), record() as trace:
        fail()
    assert find_advice(trace) == ()
