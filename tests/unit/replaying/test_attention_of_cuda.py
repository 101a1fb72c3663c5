"""Attention as CUDA has it, replayed on the CPU: forward, and backward."""

import pytest
import torch
from torch.nn import functional as F

from meta_magic import record

CALLS = {
    "efficient": {"dtype": torch.float32},
    "efficient, causal": {"dtype": torch.float32, "is_causal": True},
    "flash": {"dtype": torch.float16},
    "flash, causal": {"dtype": torch.bfloat16, "is_causal": True},
    "masked": {"dtype": torch.float32, "has_mask": True},
    "in groups": {"dtype": torch.float32, "n_heads": 1},
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
def test_the_backward_of_attention_drops_what_its_forward_dropped(dtype):
    with record(as_device="cuda"):
        out, v, _, _, grad = attend("cuda", dtype, dropout_p=0.5)
    # The output is linear in the values.
    total = (torch.tensor(v) * torch.tensor(grad)).sum()
    assert torch.allclose(total, torch.tensor(out).sum(), rtol=0.01, atol=0.05)
    assert out != attend("cpu", dtype)[0]
