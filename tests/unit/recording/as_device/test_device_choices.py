"""Python functions of torch choose as on the recorded device: compared with the CPU."""

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.nn import functional as F

from meta_magic import record, verify
from tests.unit.eager import assert_refused_alike, assert_same_operators

OPTIMIZERS = {
    "AdamW": torch.optim.AdamW,
    "fused": lambda p: torch.optim.AdamW(p, fused=True),
    "foreach": lambda p: torch.optim.Adam(p, foreach=True),
    "fused SGD": lambda p: torch.optim.SGD(p, lr=0.1, fused=True),
    "RMSprop": torch.optim.RMSprop,
    "Muon": lambda p: torch.optim.Muon([q for q in p if q.ndim == 2]),
}


def step(make):
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    updates = make([*model.parameters()])
    for _ in range(2):
        model(torch.zeros(5, 3)).sum().backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        updates.step()
        updates.zero_grad()


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_as_cpu_the_operators_are_those_of_the_cpu(name):
    assert_same_operators(lambda: step(OPTIMIZERS[name]), skipped=["lift_fresh"])


def test_as_cuda_all_parameters_are_updated_at_once():
    # torch/optim/optimizer.py, _default_to_fused_or_foreach: foreach on CUDA.
    with record(as_device="cuda") as trace:
        step(torch.optim.AdamW)
    names = [op.op for op in trace.ops if op.phase == "optimizer"]
    assert names.count("aten._foreach_addcdiv_.ScalarList") == 2
    assert not [name for name in names if name.startswith("aten.addcdiv_")]


def test_as_cuda_a_capturable_optimizer_counts_its_steps_in_tensors():
    # What the CUDA build of torch 2.13 runs for fake tensors on CUDA.
    with record(as_device="cuda") as trace:
        step(lambda p: torch.optim.AdamW(p, capturable=True))
    names = [op.op for op in trace.ops if op.phase == "optimizer"]
    assert names.count("aten._foreach_pow.ScalarAndTensor") == 4
    assert "aten._local_scalar_dense.default" not in names


def test_as_cpu_a_capturable_optimizer_is_refused_in_torchs_words():
    def capture():
        step(lambda p: torch.optim.AdamW(p, capturable=True, foreach=True))

    assert_refused_alike(capture, as_device="cpu")


DETERMINISTIC = {
    "bilinear": lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"),
    "trilinear": lambda x: F.interpolate(x[None], scale_factor=2, mode="trilinear"),
    "padding": lambda x: F.pad(x, (1, 1, 1, 1), mode="replicate"),
    "pooling": lambda x: F.max_pool3d(x[None], 2),
}


@pytest.fixture
def deterministic():
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.mark.usefixtures("deterministic")
@pytest.mark.parametrize("name", DETERMINISTIC)
def test_deterministic_functions_run_the_kernels_of_the_cpu(name):
    assert_same_operators(lambda: DETERMINISTIC[name](torch.ones(1, 2, 4, 4)))


@pytest.fixture(scope="module")
def options():
    return pytest.importorskip("torch.nn.modules.linear_cross_entropy_options")


def compute_loss(options, dtype):
    x = torch.linspace(-1, 1, 12).view(4, 3).to(dtype).requires_grad_()
    weight = torch.linspace(-1, 1, 15).view(5, 3).to(dtype)
    target = torch.tensor([0, 4, 2, 1])
    chosen = options.LinearCrossEntropyOptions()
    loss = functional.linear_cross_entropy(x, weight, target, options=chosen)
    loss.backward()
    return loss.item(), x.grad.tolist()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_loss_in_chunks_is_that_of_the_cpu(options, dtype):
    with record(as_device="cpu") as trace:
        met = compute_loss(options, dtype)
    assert met == compute_loss(options, dtype)
    assert verify(trace, "cpu").empty
