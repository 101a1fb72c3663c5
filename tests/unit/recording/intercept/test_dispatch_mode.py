"""Calls that torch takes apart or writes for, and backward passes, as on the CPU."""

import pytest
import torch
from torch import nn

from meta_magic import record
from tests.unit.eager import assert_same, assert_same_tensor
from tests.unit.recording.intercept.data_of_cells import notes_of
from tests.unit.replaying.replays import replay

PARTS = {
    "chunk": lambda x: x.chunk(2, -1),
    "chunk of a chunk": lambda x: x.chunk(2, -1)[0].chunk(2),
    "narrow": lambda x: (x.narrow(0, 1, 2),),
    "split": lambda x: x.split(2),
    "flatten": lambda x: (x[None].flatten(),),
}


def take(name, *, is_inside):
    torch.manual_seed(3)
    x = torch.rand(4, 6)
    with torch.inference_mode():
        parts = PARTS[name](x * 1 if is_inside else x)
        return [(p.is_inference(), p._is_view(), p.tolist()) for p in parts]


@pytest.mark.parametrize("name", PARTS)
@pytest.mark.parametrize("is_inside", [True, False])
def test_in_inference_mode_a_part_is_what_it_is_on_the_cpu(name, is_inside):
    assert_same(lambda: take(name, is_inside=is_inside), as_device="cpu")


# Tensors that an operator is given to write: layouts and versions as on the CPU


def channels_last():
    return torch.randn(2, 3, 2, 2).to(memory_format=torch.channels_last)


def sort():
    made = torch.empty(2, 3, 2, 2), torch.empty(2, 3, 2, 2, dtype=torch.long)
    return torch.sort(channels_last(), out=made)[0]


WRITES = {
    "sorted": sort,
    "range": lambda: torch.arange(4, out=torch.empty(2, 2)),
    "images": lambda: torch.cat([channels_last()] * 2, out=torch.empty(0)),
    "matrix": lambda: torch.mm(
        torch.randn(2, 3), torch.randn(3, 4), out=torch.empty(4, 2).t()
    ),
}


@pytest.mark.parametrize("name", WRITES)
def test_what_is_written_has_the_layout_and_the_values_of_the_cpu(name):
    torch.manual_seed(0)
    real = WRITES[name]()
    for _ in range(2):  # the second one may be served
        torch.manual_seed(0)
        with record(as_device="cpu") as trace:
            made = WRITES[name]()
        assert (made.shape, made.stride()) == (real.shape, real.stride())
        assert_same_tensor(replay(trace, made)[0], real)


INITIALIZED = {
    "orthogonal": lambda: nn.init.orthogonal_(torch.ones(3, 4)),
    "sparse": lambda: nn.init.sparse_(torch.ones(3, 5), 0.3),
    "dirac": lambda: nn.init.dirac_(torch.ones(6, 2, 3), groups=3),
    "truncated": lambda: nn.init.trunc_normal_(torch.ones(300)),
    "truncated far outside": lambda: nn.init.trunc_normal_(torch.ones(3), std=0.02),
    "truncated to little": lambda: nn.init.trunc_normal_(torch.ones(300), 0, 1, 1, 2),
    "nearly uniform": lambda: nn.init.trunc_normal_(torch.ones(3), 0, 50, -1, 1),
}


@pytest.mark.parametrize("name", INITIALIZED)
def test_an_initializer_counts_its_writes_as_on_the_cpu(name):
    torch.manual_seed(0)
    real = INITIALIZED[name]()
    for _ in range(2):  # the second one may be served
        with record():
            made = INITIALIZED[name]()
        assert made._version == real._version


# Hooks and custom functions run in a cell's backward pass as on the CPU


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
