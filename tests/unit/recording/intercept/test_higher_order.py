"""Higher-order operators: what they run is recorded."""

import contextlib

import pytest
import torch
from torch import nn
from torch._higher_order_ops import associative_scan, scan, while_loop
from torch.nn.attention import flex_attention as flex
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
)

from meta_magic import record


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
