"""Bytes of a call: each element once."""

import pytest
import torch
from torch.nn import functional as F

from meta_magic import record

F32 = 4
I64 = 8


def R(*shape):
    return torch.randn(*shape)


def last(run):
    """Return bytes read and written by the last call."""
    with record(as_device="cpu") as trace:
        run()
    call = trace.ops[-1]
    return call.nbytes_read, call.nbytes_written


CASES = {
    "add": (lambda: R(2, 3) + R(2, 3), 2 * 6 * F32, 6 * F32),
    "in place": (lambda: R(2, 3).add_(1), 6 * F32, 6 * F32),
    "a view": (lambda: R(2, 3).t(), 0, 0),
    "a slice": (lambda: R(2, 3)[:, 1:], 0, 0),
    # Neither is a view by its schema, and both copy nothing.
    "matmul's view": (lambda: torch.ops.aten._unsafe_view(R(2, 3), (6,)), 0, 0),
    "unmade": (lambda: torch.empty(2, 3), 0, 0),
    "made": (lambda: torch.zeros(2, 3), 0, 6 * F32),
    # 3 elements, though they are read twice.
    "broadcast": (lambda: R(3).expand(2, 3) + 1, 3 * F32, 6 * F32),
    "filled": (lambda: R(2, 3).fill_(1), 0, 6 * F32),
    "initialized": (lambda: torch.nn.init.trunc_normal_(R(2, 3)), 0, 6 * F32),
    "copied into": (lambda: R(2, 3).copy_(R(2, 3)), 6 * F32, 6 * F32),
    "cast": (lambda: R(2, 3).to(torch.float64), 6 * F32, 6 * 8),
    # Two rows of a hundred, and their numbers.
    "embedding": (
        lambda: F.embedding(torch.tensor([1, 2]), R(100, 3)),
        2 * I64 + 6 * F32,
        6 * F32,
    ),
    "rows": (lambda: R(100, 3)[torch.tensor([1, 2])], 2 * I64 + 6 * F32, 6 * F32),
    "rows written": (
        lambda: R(100, 3).index_put_((torch.tensor([1, 2]),), R(2, 3)),
        2 * I64 + 6 * F32,
        6 * F32,
    ),
    # What is added to is read, too.
    "rows added": (
        lambda: R(100, 3).index_add_(0, torch.tensor([1, 2]), R(2, 3)),
        2 * I64 + 6 * F32 + 6 * F32,
        6 * F32,
    ),
    "product": (lambda: torch.mm(R(4, 3), R(3, 5)), (4 * 3 + 3 * 5) * F32, 4 * 5 * F32),
    "out": (
        lambda: torch.add(R(2, 3), R(2, 3), out=torch.empty(2, 3)),
        2 * 6 * F32,
        6 * F32,
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_bytes_are_those_of_elements_each_once(name):
    run, read, written = CASES[name]
    assert last(run) == (read, written)


def test_a_fused_optimizer_reads_gradients_and_writes_them_if_it_scales():
    def step(**scale):
        settings = {"lr": 1.0, "beta1": 0.9, "beta2": 0.9, "weight_decay": 0.0}
        settings |= {"eps": 1e-8, "amsgrad": False, "maximize": False}

        def run():
            tensors = [[R(4, 3)] for _ in range(4)]
            scales = {name: make() for name, make in scale.items()}
            steps = [torch.ones(())]
            torch.ops.aten._fused_adamw_(*tensors, [], steps, **settings, **scales)

        return last(run)

    nbytes = 4 * 3 * F32
    assert step() == (4 * nbytes + F32, 3 * nbytes)
    assert step(grad_scale=lambda: torch.ones(())) == (4 * nbytes + 2 * F32, 4 * nbytes)
