"""Hooks and custom functions run in a cell's backward pass as on the CPU."""

import pytest
import torch
from torch import nn

from meta_magic import record
from tests.unit.recording.intercept.data_of_cells import notes_of


class Scaled(torch.autograd.Function):
    """Takes what its gradient is scaled by from the values of it."""

    @staticmethod
    def forward(ctx, a):
        ctx.save_for_backward(a)
        return a * 2

    @staticmethod
    def backward(ctx, grad):
        (a,) = ctx.saved_tensors
        scale = torch.full((), 2.0) + float(grad.numpy().sum()) + a.max().item()
        return grad * scale


def hook_tensor(_, x):
    x.register_hook(lambda grad: grad * torch.arange(4.0) + grad.sum().item())


def hook_module(model, _):
    def scale(module, grads):
        return tuple(
            grad * torch.rand(3, 2) * float(f"{grad.norm():.3f}") for grad in grads
        )

    model.register_full_backward_pre_hook(scale)


def hook_after_module(model, x):
    def add(module, given, grads):
        ones = torch.ones(3, 4) * float(grads[0].numpy().max())
        return (given[0] + ones,)

    model.register_full_backward_hook(add)


def hook_accumulated(model, _):
    def decay(weight):
        weight.grad.add_(torch.eye(2, 4)).mul_(weight.grad.abs().max().item())

    model.weight.register_post_accumulate_grad_hook(decay)


HOOKS = {
    "of a tensor": hook_tensor,
    "before a module": hook_module,
    "after a module": hook_after_module,
    "after accumulation": hook_accumulated,
}


def run_hooked(hook):
    torch.manual_seed(0)
    model, x = nn.Linear(4, 2), torch.randn(3, 4, requires_grad=True)
    hook(model, x)
    (model(x) ** 2).sum().backward()
    (weight,) = torch.autograd.grad(model(x).sum(), model.weight)
    return [model.weight.grad.tolist(), x.grad.tolist(), weight.tolist()]


@pytest.mark.parametrize("name", HOOKS)
def test_a_hook_makes_tensors_and_reads_values_as_on_the_cpu(name):
    wanted = run_hooked(HOOKS[name])
    with record() as trace:
        assert run_hooked(HOOKS[name]) == wanted
    assert notes_of(trace).keys() == {"evaluated"}


def test_the_backward_of_a_custom_function_reads_values():
    def run():
        x = torch.arange(3.0, requires_grad=True)
        Scaled.apply(x).sum().backward()
        return x.grad.tolist()

    wanted = run()
    with record() as trace:
        assert run() == wanted
    assert notes_of(trace).keys() == {"evaluated"}


def test_what_a_hook_calls_belongs_to_the_backward_pass_and_names_itself():
    with record() as trace:
        x = torch.ones(3, requires_grad=True)
        x.register_hook(lambda grad: grad + torch.eye(3)[0])
        x.sin().sum().backward()
    (made,) = [call for call in trace.ops if call.op == "aten.eye.default"]
    assert (made.phase, made.function) == ("backward", "torch.eye")
    (after,) = [call for call in trace.ops if call.op == "aten.detach.default"][-1:]
    assert after.phase == "backward"
