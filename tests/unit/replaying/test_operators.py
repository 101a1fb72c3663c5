"""Operators in a replay: what they return, and which cannot run."""

import math

import pytest
import torch
from torch.nn import functional
from torch.nn import functional as F

from meta_magic import ReplayError, ValueLimits, record
from meta_magic.replaying.operators import find_operator
from tests.unit.eager import assert_same_tensor
from tests.unit.replaying.replays import both, plan, replay


def beside_transposed():
    x = torch.arange(6.0).view(2, 3).clone()
    before, alias = x * 2, x.detach()
    x.t_()
    return before + alias


def beside_grown():
    out = torch.arange(4.0)
    alias, before = out.detach(), out * 2
    torch.arange(6.0, out=out.resize_(6))
    return before + alias


def foreach_in_place():
    tensors = [torch.ones(2), torch.ones(2)]
    torch._foreach_mul_(tensors, [3.0, 4.0])
    return tensors[1]


def gradient():
    x = torch.arange(3.0, requires_grad=True)
    (x.exp() * 2).sum().backward()
    return x.grad


def statistics():
    mean = torch.zeros(2)
    functional.batch_norm(
        torch.arange(6.0).view(3, 2), mean, torch.ones(2), training=True
    )
    return mean


LAYOUTS = {
    "beside one that was transposed": beside_transposed,
    "beside one that grew": beside_grown,
    "transposed": lambda: torch.arange(6.0).view(2, 3).t().contiguous().t() * 2,
    "channels last": lambda: (
        torch.ones(1, 2, 3, 3).to(memory_format=torch.channels_last) * torch.arange(3.0)
    ),
    "conjugated": lambda: torch.tensor([1 + 2j]).conj() * 1,
    "complex as real": lambda: torch.view_as_real(torch.tensor([1 + 2j, 3])).clone(),
    "other dtype": lambda: torch.arange(4.0).view(torch.int32).clone(),
    "unfolded": lambda: torch.arange(6.0).unfold(0, 3, 1).clone(),
    "diagonal": lambda: torch.eye(3).diagonal().add_(1),
    "index put": lambda: torch.zeros(3).index_put_(
        (torch.tensor([0, 2]),), torch.tensor([5.0, 6.0])
    ),
    "nan and inf": lambda: torch.full((2,), math.inf) * torch.tensor([1.0, -1]),
    "full of nan": lambda: torch.full((3,), math.nan).nan_to_num(nan=2.5),
    "nan": lambda: torch.full((2,), math.nan).view(torch.int32),
    "nan of an item": lambda: (torch.ones(2) * (torch.zeros(2) / 0).sum().item()).view(
        torch.int32
    ),
    "negative zero": lambda: 1 / torch.full((3,), -0.0),
    "out": lambda: torch.add(torch.ones(2), 1, out=torch.empty(2)),
    "resized out": lambda: torch.add(torch.ones(2), 1, out=torch.empty(0)),
    "grown from a value": lambda: torch.tensor(3.0).resize_(2).fill_(1),
    "resized": lambda: torch.ones(2).resize_(1),
    "set": lambda: torch.empty(0).set_(torch.arange(3.0)),
    "interpolated": lambda: functional.interpolate(
        torch.ones(1, 1, 2, 2), scale_factor=2
    ),
    "attention": lambda: functional.scaled_dot_product_attention(
        *torch.arange(24.0).view(3, 1, 2, 4)
    ),
    "foreach": lambda: torch._foreach_add([torch.ones(2), torch.ones(2)], 2)[1],
    "foreach in place": foreach_in_place,
    "grad": gradient,
    "batch norm": lambda: functional.batch_norm(
        torch.arange(6.0).view(3, 2), torch.zeros(2), torch.ones(2), training=True
    ),
    "statistics of a batch norm": statistics,
    "checkpointed": lambda: torch.utils.checkpoint.checkpoint(
        torch.exp, torch.arange(3.0), use_reentrant=False
    ),
    "one value of a range": lambda: torch.arange(0, 1, 0.1)[3:5] + 1,
    "float64 of linspace": lambda: torch.linspace(0, 1, 7, dtype=torch.float64),
    "masked": lambda: torch.zeros(3).masked_fill_(
        torch.tensor([True, False, True]), float("-inf")
    ),
    "to and back": lambda: torch.arange(3.0).half().float().bool().int(),
    "string index": lambda: torch.ones(3)[..., None, 1:].expand(2, 1, 2).clone(),
}


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("name", LAYOUTS)
def test_a_replayed_operator_returns_the_real_result(name):
    real, made = both(LAYOUTS[name])
    assert_same_tensor(made, real.detach())


def test_a_meta_tensor_from_outside_is_an_error_that_names_line_and_operator():
    outside = torch.ones(3, device="meta")
    with record() as trace:
        wanted = outside * 2
    with pytest.raises(
        ReplayError, match=r"12 bytes, read by aten\.mul\.Tensor in line"
    ):
        plan(trace, wanted)


def test_an_unregistered_operator_is_an_error_that_names_it():
    with pytest.raises(
        ReplayError, match=r"nowhere\.nothing\.default is not registered"
    ):
        find_operator("nowhere.nothing.default")


def test_an_index_out_of_range_is_an_error_that_names_the_operator():
    with record(limits=ValueLimits(nbytes=0)) as trace:
        index = torch.rand(1).add(7).long()  # too expensive to know when recorded
        wanted = torch.arange(3.0)[index]
    with pytest.raises(ReplayError, match=r"aten\.index\.Tensor in line \d+ failed"):
        replay(trace, wanted)


CALLS = {
    "efficient": {"dtype": torch.float32},
    "efficient, causal": {"dtype": torch.float32, "is_causal": True},
    "flash": {"dtype": torch.float16},
    "flash, causal": {"dtype": torch.bfloat16, "is_causal": True},
    "masked": {"dtype": torch.float32, "has_mask": True},
    "in groups": {"dtype": torch.float16, "n_heads": 1},
}


def attend(device, dtype, *, dropout_p=0.0, is_causal=False, has_mask=False, n_heads=2):
    """Return what attention gives, and the gradients of query, key and value."""
    torch.manual_seed(0)
    shapes = ((2, 2, 5, 8), (2, n_heads, 5, 8), (2, n_heads, 5, 8))
    q, k, v = (torch.randn(shape).to(device, dtype) for shape in shapes)
    leaves = [tensor.requires_grad_() for tensor in (q, k, v)]
    mask = torch.randn(2, 2, 5, 5).to(device, dtype) if has_mask else None
    has_groups = n_heads == 1
    out = F.scaled_dot_product_attention(
        q, k, v, mask, dropout_p, is_causal, enable_gqa=has_groups
    )
    out.sum().backward()
    return [t.detach().float().tolist() for t in (out, v, *(t.grad for t in leaves))]


@pytest.mark.parametrize("name", CALLS)
def test_gradients_of_fused_attention_are_those_of_the_math(name):
    dtype = CALLS[name]["dtype"]
    wanted = attend("cpu", **CALLS[name])
    with record(as_device="cuda") as trace:
        made = attend("cuda", **CALLS[name])
    assert any("attention_backward" in call.op for call in trace.ops)
    tolerance = 1e-5 if dtype == torch.float32 else 0.05
    for one, other in zip(made, wanted, strict=True):
        assert torch.allclose(torch.tensor(one), torch.tensor(other), atol=tolerance)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_the_backward_of_attention_has_the_dropout_of_its_forward(dtype):
    with record(as_device="cuda"):
        out, v, _, _, grad = attend("cuda", dtype, dropout_p=0.5)
    # The output is linear in the values.
    total = (torch.tensor(v) * torch.tensor(grad)).sum()
    assert torch.allclose(total, torch.tensor(out).sum(), rtol=0.01, atol=0.05)
    assert out != attend("cpu", dtype)[0]
