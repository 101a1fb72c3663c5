"""Values read inside of ``torch.func`` transforms and of hooks, as on the CPU."""

import contextlib

import pytest
import torch
from torch import nn

from meta_magic import record

func = torch.func

TRANSFORMS = {
    "item below vmap": lambda: torch.vmap(lambda x: x.item())(torch.arange(3.0)),
    "condition below vmap": lambda: torch.vmap(lambda x: x * 2 if x.sum() > 0 else x)(
        torch.ones(3, 2)
    ),
    "mask below vmap": lambda: torch.vmap(lambda x: x[x > 0].sum())(torch.ones(3, 2)),
    "item below grad": lambda: func.grad(lambda x: x.sum() * x.sum().item())(
        torch.ones(3)
    ),
    "condition below grad": lambda: func.grad(
        lambda x: (x**2).sum() if x.sum() > 0 else x.sum()
    )(torch.ones(3)),
    "list below grad": lambda: func.grad(
        lambda x: (x * torch.tensor(x.tolist())).sum()
    )(torch.ones(3)),
    "array below grad": lambda: func.grad(lambda x: x.sum() * x.numpy().sum())(
        torch.ones(3)
    ),
    "unique below grad": lambda: func.grad(lambda x: x.sum() * len(x.unique()))(
        torch.ones(3)
    ),
    "item below jvp": lambda: func.jvp(
        lambda x: x * x.sum().item(), (torch.ones(2),), (torch.ones(2),)
    )[1],
    "item below hessian": lambda: func.hessian(lambda x: (x**3).sum() * x.sum().item())(
        torch.ones(2)
    ),
    "item below vmap of grad": lambda: torch.vmap(
        func.grad(lambda x: x.sum() * x.sum().item())
    )(torch.ones(3, 2)),
}


def hook_of_tensor():
    x = torch.ones(3, requires_grad=True)
    x.register_hook(lambda g: g * 2 if g.sum().item() > 0 else -g)
    (x * 3).sum().backward()
    return x.grad


def hook_of_module():
    layer = nn.Linear(2, 2)
    layer.register_forward_hook(lambda _m, _a, y: y / y.abs().max().item())
    layer.register_full_backward_hook(lambda _m, g, _o: (g[0] * float(g[0].sum()),))
    x = torch.ones(1, 2, requires_grad=True)
    layer(x).sum().backward()
    return x.grad


def hook_of_accumulation():
    norms = []
    x = torch.ones(3, requires_grad=True)
    x.register_post_accumulate_grad_hook(lambda t: norms.append(t.grad.norm().item()))
    (x**2).sum().backward()
    return torch.tensor(norms)


def hook_of_saved_tensors():
    seen = []

    def pack(tensor):
        seen.append(tensor.sum().item())
        return tensor

    x = torch.ones(3, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda packed: packed):
        (x * x).sum().backward()
    return torch.tensor(seen)


def hook_that_fails():
    x = torch.ones(3, requires_grad=True)
    x.register_hook(lambda g: g.item())
    (x * 3).sum().backward()
    return x.grad


def hook_of_optimizer():
    x = torch.ones(3, requires_grad=True)
    optimizer = torch.optim.SGD([x], lr=0.1)
    seen = []
    optimizer.register_step_post_hook(lambda *_: seen.append(x.sum().item()))
    (x * 3).sum().backward()
    optimizer.step()
    return torch.tensor(seen)


HOOKS = {
    function.__name__: function
    for function in (
        *(hook_of_tensor, hook_of_module, hook_of_accumulation),
        *(hook_of_saved_tensors, hook_that_fails, hook_of_optimizer),
    )
}


def run(program):
    """Return what a program returns, as values, or what it raises."""
    torch.manual_seed(0)
    try:
        return program().tolist()
    except (RuntimeError, ValueError) as error:
        return type(error), str(error)


@pytest.mark.parametrize("program", [*TRANSFORMS.values(), *HOOKS.values()])
def test_a_value_inside_is_that_of_the_cpu_or_refused_in_its_words(program):
    returned = []
    for block in (contextlib.nullcontext(), record(), record(cache=False)):
        with block:
            returned.append(run(program))
    assert returned[1:] == returned[:1] * 2
