"""Optimizers as a device runs them: on the CPU compared with the CPU itself."""

import pytest
import torch
from torch import nn
from torch.optim import adamax, optimizer
from torch.utils._foreach_utils import _get_foreach_kernels_supported_devices

from meta_magic import record
from tests.unit.eager import Names

OPTIMIZERS = {
    "AdamW": torch.optim.AdamW,
    "fused": lambda p: torch.optim.AdamW(p, fused=True),
    "foreach": lambda p: torch.optim.Adam(p, foreach=True),
    "foreach RMSprop": lambda p: torch.optim.RMSprop(p, foreach=True),
    "foreach Rprop": lambda p: torch.optim.Rprop(p, foreach=True),
    "SGD": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
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


def leave_out_constants(ops):
    return [op for op in ops if op != "aten.lift_fresh.default"]


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_as_cpu_the_operators_are_those_of_the_cpu(name):
    make = OPTIMIZERS[name]
    with Names() as real:
        step(make)
    with record(as_device="cpu") as trace:
        step(make)
    assert leave_out_constants([op.op for op in trace.ops]) == leave_out_constants(
        real.ops
    )


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

    with pytest.raises(AssertionError) as real:
        capture()
    with pytest.raises(AssertionError) as met, record(as_device="cpu"):
        capture()
    assert str(met.value) == str(real.value)


def test_as_meta_fused_is_refused_in_torchs_words():
    with pytest.raises(RuntimeError, match="fused=True"), record(as_device="meta"):
        step(OPTIMIZERS["fused"])


def test_afterwards_torch_is_as_it_was():
    with record(as_device="cuda"):
        pass
    assert "meta" not in _get_foreach_kernels_supported_devices()
    assert "meta" not in optimizer._get_foreach_kernels_supported_devices()
    assert "meta" not in optimizer._get_fused_kernels_supported_devices()
    assert "meta" not in adamax._get_capturable_supported_devices()
