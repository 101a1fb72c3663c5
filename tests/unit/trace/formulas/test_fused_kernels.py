"""FLOPs of kernels that a CPU does not have, and of masked attention, by hand."""

import pytest
import torch
from torch.nn import functional as F

from meta_magic import record
from meta_magic.trace.formulas.call_costs import count_operations

aten = torch.ops.aten
PAIR = 2 * 16
"""FLOPs of one query and one key, 16 wide, in one product."""


def R(*shape, dtype=torch.bfloat16):
    return torch.randn(*shape, dtype=dtype)


def count(run, name, as_device="meta"):
    """Return what the first call of an operator computes."""
    with record(as_device=as_device) as trace:
        run()
    found = [s for s in trace.program.signatures if s.op.split(".")[1] == name]
    return count_operations(found[0])


def attend(n_queries, n_keys, *, as_device="cuda", **settings):
    """Return what attention of 2 sequences and 4 heads computes, and its backward."""

    def run():
        query = R(2, 4, n_queries, 16).requires_grad_()
        key, value = (R(2, 4, n_keys, 16) for _ in range(2))
        F.scaled_dot_product_attention(query, key, value, **settings).sum().backward()

    kernel = "_scaled_dot_product_flash_attention"
    kernel += "_for_cpu" if as_device == "cpu" else ""
    return [count(run, name, as_device) for name in (kernel, f"{kernel}_backward")]


@pytest.mark.parametrize("as_device", ["cpu", "cuda"])
def test_causal_attention_is_counted_in_full_and_without_what_is_masked(as_device):
    forward, backward = attend(24, 24, is_causal=True, as_device=as_device)
    # Query i sees the keys 0 to i: 1 + 2 + ... + 24 pairs.
    seen = 2 * 4 * (24 * 25 // 2)
    assert (forward.flops, forward.flops_needed) == (
        2 * PAIR * 2 * 4 * 24 * 24,
        2 * PAIR * seen,
    )
    assert (backward.flops, backward.flops_needed) == (
        5 * PAIR * 2 * 4 * 24 * 24,
        5 * PAIR * seen,
    )


def flash(n_queries, n_keys, *, is_causal=False, **window):
    shape = (2, n_queries, 4, 16), (2, n_keys, 4, 16), (2, n_keys, 4, 16)
    return lambda: aten._flash_attention_forward(
        *[R(*s) for s in shape],
        *(None, None, n_queries, n_keys, 0.0, is_causal, False),
        **window,
    )


def visible(n_queries, n_keys, left, right):
    """Count by hand the pairs in a window that is drawn from the last positions."""
    shift = n_keys - n_queries
    return sum(
        i + shift - left <= j <= i + shift + right
        for i in range(n_queries)
        for j in range(n_keys)
    )


@pytest.mark.parametrize("sizes", [(16, 16), (10, 16), (16, 10), (1, 16)])
@pytest.mark.parametrize("window", [(3, 0), (0, 2), (5, 5), (100, 100)])
def test_a_sliding_window_leaves_out_what_lies_outside(sizes, window):
    left, right = window
    run = flash(*sizes, window_size_left=left, window_size_right=right)
    counted = count(run, "_flash_attention_forward")
    assert counted.flops == 2 * PAIR * 8 * sizes[0] * sizes[1]
    assert counted.flops_needed == 2 * PAIR * 8 * visible(*sizes, left, right)


def test_the_efficient_kernel_counts_positions_before_heads():
    shape = (2, 16, 4, 16)
    counted = count(
        lambda: aten._efficient_attention_forward(
            *[R(*shape, dtype=torch.float32) for _ in range(3)],
            *(None, None, None, None, None, 0.0, 1, True),
        ),
        "_efficient_attention_forward",
    )
    assert counted.flops == 2 * PAIR * 2 * 4 * 16 * 16
    assert counted.flops_needed == 2 * PAIR * 2 * 4 * (16 * 17 // 2)


def test_cudnns_recurrent_layers_count_all_weights_at_each_step():
    def run():
        first = [R(64, 8), R(64, 16), R(64), R(64)]
        second = [R(64, 16), R(64, 16), R(64), R(64)]
        states = [R(2, 3, 16) for _ in range(2)]
        settings = (2, 16, 0, 2, False, 0.0, True, False, [], None)
        aten._cudnn_rnn(R(10, 3, 8), [*first, *second], 4, None, *states, *settings)

    counted = count(run, "_cudnn_rnn")
    assert counted.flops == 2 * 10 * 3 * 64 * ((8 + 16) + (16 + 16))


def test_a_scaled_product_of_narrow_floats_is_a_product():
    def run():
        left, right = (R(16, 32).to(torch.float8_e4m3fn) for _ in range(2))
        scales = [torch.ones(()) for _ in range(2)]
        torch._scaled_mm(left, right.t(), *scales, out_dtype=torch.bfloat16)

    assert count(run, "_scaled_mm").flops == 2 * 16 * 16 * 32


def test_integers_multiply_as_floats_do():
    def run():
        left, right = torch.zeros(32, 16), torch.zeros(16, 24)
        torch._int_mm(left.to(torch.int8), right.to(torch.int8))

    assert count(run, "_int_mm").flops == 2 * 32 * 24 * 16
