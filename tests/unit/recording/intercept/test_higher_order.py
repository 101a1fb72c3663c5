"""Higher-order operators: what they run is recorded."""

import contextlib
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch._higher_order_ops import associative_scan, scan, while_loop
from torch.func import functionalize, grad, hessian, jacrev, jvp, vjp, vmap
from torch.nn.attention import flex_attention as flex
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
)

import meta_magic
from meta_magic import record
from tests.unit.eager import assert_same


def ops_of(program):
    with record() as trace:
        program()
    return [call.op.removeprefix("aten.") for call in trace.ops]


def double(x):
    return x.cos() * 2


def test_cond_is_the_branch_that_python_takes():
    def by_cond():
        x = torch.ones(3)
        return torch.cond(x.sum() > 4, torch.sin, double, (x,))

    def by_if():
        x = torch.ones(3)
        return x.sin() if x.sum() > 4 else double(x)

    assert ops_of(by_cond) == ops_of(by_if)
    assert "cos.default" in ops_of(by_cond)


def test_what_a_branch_computes_can_be_replayed():
    def program():
        x = torch.randn(3)
        return torch.cond(x.sum() > 0, torch.sin, torch.cos, (x,)).tolist()

    torch.manual_seed(0)
    x = torch.randn(3)
    wanted = (x.sin() if x.sum() > 0 else x.cos()).tolist()
    with record():
        torch.manual_seed(0)
        assert program() == wanted


def test_a_loop_runs_as_often_as_for_real():
    def run():
        return while_loop(
            lambda i, x: i < 5, lambda i, x: (i + 1, x * 2), (torch.tensor(0), x)
        )

    with record() as trace:
        x = torch.ones(3)
        i, y = run()
    assert [call.op for call in trace.ops].count("aten.mul.Tensor") == 5
    assert (i.shape, i.dtype, y.shape) == ((), torch.int64, (3,))


def test_a_scan_runs_its_step_for_each_row():
    with record() as trace:
        last, rows = scan(
            lambda c, x: (c + x, c * x), torch.zeros(3), torch.ones(5, 3), dim=0
        )
    assert [call.op for call in trace.ops].count("aten.add.Tensor") >= 5
    assert (last.shape, rows.shape) == ((3,), (5, 3))


def test_an_associative_scan_is_recorded():
    with record() as trace, torch.no_grad():
        y = associative_scan(torch.add, torch.ones(5, 3), 0, combine_mode="generic")
    assert y.shape == (5, 3)
    assert "aten.add.Tensor" in [call.op for call in trace.ops]


def test_flex_attention_is_its_math_forward_and_backward():
    with record(as_device="cuda") as trace:
        q, k, v = (torch.ones(1, 2, 16, 8, requires_grad=True) for _ in range(3))
        mask = flex.create_block_mask(
            lambda b, h, i, j: i >= j, None, None, 16, 16, device="meta"
        )
        y = flex.flex_attention(q, k, v, lambda s, *_: s * 2, block_mask=mask)
        y.sum().backward()
    assert (y.shape, q.grad.shape) == ((1, 2, 16, 8), (1, 2, 16, 8))
    # Two products of 2 heads, 16 queries, 16 keys, 8 channels: forward.
    products = [c.flops for c in trace.ops if c.flops and c.phase != "backward"]
    assert products == [2 * 2 * 16 * 16 * 8] * 2
    (note,) = (n for n in trace.notes if n.kind == "foreign")
    assert note.text.startswith("flex_attention was recorded as torch runs it without")
    assert note.line is not None


@pytest.mark.parametrize("device", [contextlib.nullcontext(), torch.device("cpu")])
def test_flex_attention_refuses_what_the_cpu_refuses(device):
    with record(), device:
        q = torch.ones(1, 2, 16, 8, requires_grad=True)
        with pytest.raises(NotImplementedError, match="backward on CPU"):
            flex.flex_attention(q, q, q)


def save_products(_, op, *args, **kwargs):
    is_product = op == torch.ops.aten.addmm.default
    return (
        CheckpointPolicy.MUST_SAVE if is_product else CheckpointPolicy.PREFER_RECOMPUTE
    )


@pytest.mark.parametrize(
    ("options", "n_products"),
    [
        ({"use_reentrant": True}, 4),
        # The last product is not computed again: nothing needs it.
        ({"use_reentrant": False}, 3),
        (
            {
                "use_reentrant": False,
                "context_fn": lambda: create_selective_checkpoint_contexts(
                    save_products
                ),
            },
            2,
        ),
    ],
)
def test_a_checkpoint_computes_again_what_it_did_not_save(options, n_products):
    with record() as trace:
        model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
        x = torch.ones(2, 4, requires_grad=True)
        checkpoint(model, x, **options).sum().backward()
    names = [call.op for call in trace.ops]
    assert names.count("aten.addmm.default") == n_products
    assert x.grad.shape == (2, 4)


# Tensors of values that are made inside of ``torch.func``'s transforms


TRANSFORMS = {
    "grad": lambda f, x: grad(lambda x: (x * f(x)).sum())(x),
    "grad of grad": lambda f, x: grad(lambda x: grad(lambda x: f(x).sum())(x).sum())(x),
    "hessian": lambda f, x: hessian(lambda x: (x * f(x)).sum())(x),
    "jacrev": lambda f, x: jacrev(f)(x),
    "jvp": lambda f, x: jvp(f, (x,), (torch.ones(2),))[1],
    "vjp": lambda f, x: vjp(f, x)[1](torch.ones(2))[0],
    "vmap": lambda f, x: vmap(f)(torch.stack([x, x + 1])),
    "vmap of grad": lambda f, x: vmap(grad(lambda x: f(x).sum()))(torch.stack([x, x])),
    "functionalize": lambda f, x: functionalize(f)(x),
}
MADE = {
    "tensor": lambda x: x * x * torch.tensor([1.0, 2.0]),
    "its device": lambda x: x * x * torch.tensor([1.0, 2.0], device=x.device),
    "an array": lambda x: x * x * torch.as_tensor(np.float32([1, 2])),
    "from_numpy": lambda x: x * x * torch.from_numpy(np.float32([1, 2])),
    "new_tensor": lambda x: x * x * x.new_tensor([1.0, 2.0]),
    "FloatTensor": lambda x: x * x * torch.FloatTensor([1.0, 2.0]),
    "an index": lambda x: (x * x)[[1, 0]] * x,
    "what is read": lambda x: x * x * torch.tensor([1.0, 2.0]).sum().item(),
}


@pytest.mark.parametrize("made", MADE)
@pytest.mark.parametrize("transform", TRANSFORMS)
def test_values_inside_of_a_transform_are_those_of_the_cpu(transform, made):
    def run():
        x = torch.tensor([5.0, 7.0])
        return TRANSFORMS[transform](MADE[made], x).tolist()

    assert_same(run)


@pytest.mark.parametrize("transform", [*TRANSFORMS][:-1])  # functionalize refuses
def test_a_list_with_a_tensor_is_of_its_number_inside_of_a_transform(transform):
    def made(x):
        return x * x * torch.tensor([torch.tensor(3.0), 2])

    def run():
        return TRANSFORMS[transform](made, torch.tensor([5.0, 7.0])).tolist()

    assert_same(run)


@pytest.mark.parametrize("transform", ["grad", "hessian", "jvp"])
def test_a_list_of_what_a_transform_follows_is_of_its_numbers(transform):
    def run():
        x = torch.tensor([5.0, 7.0])
        made = TRANSFORMS[transform](lambda x: x * torch.tensor([[*x], [1.0, x[0]]]), x)
        return made.tolist()

    assert_same(run)


def test_what_is_made_inside_of_a_transform_can_be_written_by_what_it_follows():
    def run():
        return grad(lambda x: torch.tensor([1.0, 2.0]).add_(x).pow(2).sum())(
            torch.tensor([5.0, 7.0])
        ).tolist()

    assert_same(run)


def test_a_tensor_of_values_is_the_operators_inside_of_a_transform_that_it_is_outside():
    def multiply(x):
        return x * torch.tensor([1.0, 2.0])

    with record() as within:
        vmap(multiply)(torch.ones(3, 2))
    with record() as outside:
        multiply(torch.ones(3, 2))
    assert [call.op for call in within.ops] == [call.op for call in outside.ops]


# Values read inside of ``torch.func`` transforms and of hooks, as on the CPU


func = torch.func

INSIDE = {
    "item below vmap": lambda: torch.vmap(lambda x: x.item())(torch.arange(3.0)),
    "condition below vmap": lambda: torch.vmap(lambda x: x * 2 if x.sum() > 0 else x)(
        torch.ones(3, 2)
    ),
    "mask below vmap": lambda: torch.vmap(lambda x: x[x > 0].sum())(torch.ones(3, 2)),
    "item below grad": lambda: func.grad(lambda x: x.sum() * x.sum().item())(
        torch.ones(3)
    ),
    "list below grad": lambda: func.grad(
        lambda x: (x * torch.tensor(x.tolist())).sum()
    )(torch.ones(3)),
    "array below grad": lambda: func.grad(lambda x: x.sum() * x.numpy().sum())(
        torch.ones(3)
    ),
    "item below jvp": lambda: func.jvp(
        lambda x: x * x.sum().item(), (torch.ones(2),), (torch.ones(2),)
    )[1],
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


@pytest.mark.parametrize("program", [*INSIDE.values(), *HOOKS.values()])
def test_a_value_inside_is_that_of_the_cpu_or_refused_in_its_words(program):
    returned = []
    for block in (contextlib.nullcontext(), record(), record(cache=False)):
        with block:
            returned.append(run(program))
    assert returned[1:] == returned[:1] * 2


# What a cell compiles, exports, traces or scripts


FIRST = """
import sys, torch
from meta_magic import materialize, record

assert "torch._dynamo" not in sys.modules
finders = list(sys.meta_path)
with record() as trace:
    x = torch.ones(3)
    torch.compile(torch.sin, fullgraph=True)(x)
    torch.cond(x.sum() > 0, torch.cos, torch.sin, (x,))
    inside = torch.compile(torch.nn.Linear(4, 2), backend="eager")
    y = inside(torch.randn(3, 4))
assert tuple(y.shape) == (3, 2) and y.is_meta
names = {call.op for call in trace.ops}
assert {f"aten.{op}.default" for op in ("sin", "cos", "addmm")} <= names, names
assert sys.meta_path == finders
compiled = torch.compile(lambda x: x * 2, backend="eager", fullgraph=True)
assert compiled(torch.ones(2)).tolist() == [2, 2]
stats = torch._dynamo.utils.counters["stats"]
assert stats["unique_graphs"] == 1, stats
torch._dynamo.utils.counters.clear()
torch.compile(inside, backend="eager")(torch.empty(3, 4, device="meta"))
assert torch._dynamo.utils.counters["frames"]["ok"] == 1
"""


ARITHMETIC = """
import sys, torch
from meta_magic import record

def list_left():
    return [f for _, f in list_disabled() if "__dynamo_disable" in vars(f)]

with record() as trace:
    x = (torch.ones(3, 4) * 2 + 1).softmax(-1)
    with record():
        x.sigmoid()
    y = x.div(2).pow(3)
assert [call.op for call in trace.ops][-1] == "aten.pow.Tensor_Scalar"
assert "torch._dynamo" not in sys.modules
from meta_magic.torch_private.replacing import list_disabled
assert len(list_disabled()) > 100
assert not list_left()
with record():
    torch.ones(3) * 2
    assert len(list_left()) > 100
    import torch._dynamo
    assert not list_left()
    torch.ones(3) * 3
torch._refs.add(torch.ones(2), 1)
assert any(vars(f)["__dynamo_disable"] is not f for f in list_left())
compiled = torch.compile(lambda x: x * 2 + 1, backend="eager", fullgraph=True)
assert compiled(torch.ones(2)).tolist() == [3, 3]
assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1
"""


@pytest.mark.parametrize("program", [FIRST, ARITHMETIC], ids=["compiles", "computes"])
def test_the_first_cell_runs_eagerly_and_later_code_compiles(program):
    result = subprocess.run(
        [sys.executable, "-c", program],
        cwd=Path(meta_magic.__file__).parents[1],
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
