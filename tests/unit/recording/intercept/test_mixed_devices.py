"""Real tensors that meet meta tensors; the cases are those of torch 2.13."""

import pytest
import torch
from torch import nn
from torch.nn import functional

from meta_magic import MixedDeviceError, record

GARBAGE = {
    "matmul": lambda real: real @ torch.ones(4, 2),
    "mm": lambda real: torch.mm(real, torch.ones(4, 2)),
    "addmm": lambda real: torch.addmm(real[:, :2], real, torch.ones(4, 2)),
    "linear": lambda real: functional.linear(real, torch.ones(2, 4)),
    "embedding": lambda real: functional.embedding(torch.zeros(1).long(), real),
    "index": lambda real: real[torch.zeros(1).long()],
    "gather": lambda real: torch.gather(real, 0, torch.zeros(1, 4).long()),
    "cdist": lambda real: torch.cdist(real, torch.ones(5, 4)),
    "add_": lambda real: real.add_(torch.ones(4)),
    "conv2d": lambda real: functional.conv2d(
        real.view(1, 3, 2, 2), torch.ones(4, 3, 1, 1)
    ),
    "bmm": lambda real: torch.bmm(torch.ones(1, 2, 3), real[None]),
}
LEGITIMATE = {
    "a scalar": lambda real: torch.ones(2) * torch.tensor(2.0, device="cpu"),
    "zeros_like": lambda real: torch.zeros_like(torch.ones(2), device="cpu"),
    "new_zeros": lambda real: torch.ones(2).new_zeros(2, device="cpu"),
    "copy to meta": lambda real: torch.empty(3, 4).copy_(real),
    "to meta": lambda real: real.to("meta") + torch.ones(4),
    "real alone": lambda real: real @ real.T,
    "to_empty": lambda real: nn.Linear(2, 2).to_empty(device="cpu"),
}


@pytest.mark.parametrize("name", GARBAGE)
@pytest.mark.parametrize("cache", [True, False])
def test_an_operator_that_would_return_garbage_is_an_error(name, cache):
    real = torch.ones(3, 4)
    with pytest.raises(MixedDeviceError), record(cache=cache):
        GARBAGE[name](real)


@pytest.mark.parametrize("name", LEGITIMATE)
def test_what_is_legitimate_passes(name):
    real = torch.ones(3, 4)
    with record() as trace:
        LEGITIMATE[name](real)
    assert trace.error is None


def test_the_error_names_both_tensors_and_the_way_out():
    real, layer = torch.ones(3, 4), nn.Linear(4, 2, bias=False, device="meta")
    with pytest.raises(MixedDeviceError) as caught, record():
        layer(real)
    text = str(caught.value)
    assert "aten.mm.default" in text
    assert "'real' (cpu float32 (3, 4))" in text
    assert "a view of 'self.weight' of Linear (meta float32 (2, 4))" in text
    assert "x.to('meta')" in text


def test_torchs_own_error_gets_a_note_that_names_both():
    real, weight = torch.ones(3, 4), torch.ones(4, device="meta")
    with pytest.raises(RuntimeError) as caught, record():
        torch.add(real, weight)
    (note,) = caught.value.__notes__
    assert "'real' (cpu float32 (3, 4)) is real" in note
    assert "'weight' (meta float32 (4,)) is meta" in note
