"""What a cell does in hooks and in backward methods is what it does elsewhere."""

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from meta_magic import record


class Doubling(torch.autograd.Function):
    """Writes what its backward meets, and uses tensors that are made there."""

    texts: list[str]

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return 2 * x

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        made = torch.full((3,), 2.0)
        Doubling.texts.append(f"{x.sum():.3f} {grad.sum()} {(made * grad).tolist()}")
        return made * grad


def by_hook(read):
    def run():
        read_of = []
        x = torch.randn(3, requires_grad=True)
        x.register_hook(lambda grad: read_of.append(read(grad)))
        (x * x).sum().backward()
        return read_of

    return run


def by_function():
    Doubling.texts = []
    x = torch.randn(3, requires_grad=True)
    Doubling.apply(x).exp().sum().backward()
    return Doubling.texts, x.grad.tolist()


def by_grad():
    Doubling.texts = []
    x = torch.randn(3, requires_grad=True)
    (grad,) = torch.autograd.grad(Doubling.apply(x).sum(), x)
    return Doubling.texts, grad.tolist()


def by_checkpoint():
    weight = torch.randn(3, requires_grad=True)

    def block(x):
        return (x * weight + torch.arange(3) * torch.ones(3)).relu()

    checkpoint(block, torch.randn(3), use_reentrant=False).sum().backward()
    return weight.grad.tolist()


def by_accumulation():
    norms = []
    layer = nn.Linear(3, 2)
    layer.weight.register_post_accumulate_grad_hook(
        lambda p: norms.append(f"{p.grad.norm():.3f}")
    )
    layer(torch.randn(4, 3)).square().mean().backward()
    return norms


RUN = {
    "a formatted number": by_hook(lambda grad: f"{grad.norm():.4f} {grad[0]}"),
    "numpy": by_hook(lambda grad: grad.numpy().tolist()),
    "a new tensor": by_hook(lambda grad: (grad + torch.ones(3)).tolist()),
    "a function": by_function,
    "gradients": by_grad,
    "a checkpoint": by_checkpoint,
    "an accumulated gradient": by_accumulation,
}


@pytest.mark.parametrize("name", RUN)
def test_what_runs_while_gradients_are_computed_is_as_on_the_cpu(name):
    torch.manual_seed(0)
    wanted = RUN[name]()
    with record() as trace:
        torch.manual_seed(0)
        met = RUN[name]()
    assert met == wanted
    assert {note.kind for note in trace.notes} <= {"evaluated"}


def test_what_follows_a_hook_is_still_of_the_backward_call():
    with record() as trace:
        x = torch.ones(2, requires_grad=True)
        y = x.exp()
        y.register_hook(lambda grad: torch.mul(grad, 2))
        y.sin().sum().backward()
    functions = [call.function for call in trace.ops if call.phase == "backward"]
    backward, mul = "torch.Tensor.backward", "torch.mul"
    assert functions.count(mul) == 1
    assert functions[-1] == backward
    assert set(functions) == {backward, mul}


def test_functions_of_torch_run_as_ever_afterwards():
    before = torch.autograd._engine_run_backward
    with record():
        assert torch.autograd._engine_run_backward is not before
    assert torch.autograd._engine_run_backward is before
