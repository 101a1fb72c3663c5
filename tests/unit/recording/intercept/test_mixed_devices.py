"""Real tensors that meet meta tensors and cannot be lifted; cases of torch 2.13."""

import pytest
import torch
from torch import nn

from meta_magic import MixedDeviceError, record

LEGITIMATE = {
    "a scalar": lambda real: torch.ones(2) * torch.tensor(2.0, device="cpu"),
    "zeros_like": lambda real: torch.zeros_like(torch.ones(2), device="cpu"),
    "new_zeros": lambda real: torch.ones(2).new_zeros(2, device="cpu"),
    "copy to meta": lambda real: torch.empty(3, 4).copy_(real),
    "to meta": lambda real: real.to("meta") + torch.ones(4),
    "real alone": lambda real: real @ real.T,
    "to_empty": lambda real: nn.Linear(2, 2).to_empty(device="cpu"),
}


class Marked(torch.Tensor):
    """A subclass, of which nobody knows what it stands for."""


@pytest.mark.parametrize("name", LEGITIMATE)
def test_what_is_legitimate_passes(name):
    real = torch.ones(3, 4)
    with record() as trace:
        LEGITIMATE[name](real)
    assert trace.error is None


@pytest.mark.parametrize("cache", [True, False])
def test_an_operator_that_would_return_garbage_is_an_error(cache):
    real = torch.ones(3, 4).as_subclass(Marked)
    with pytest.raises(MixedDeviceError), record(cache=cache):
        torch.mm(real, torch.ones(4, 2))


def test_the_error_names_both_tensors_and_the_way_out():
    real, layer = torch.ones(3, 4), nn.Linear(4, 2, bias=False, device="meta")
    real = real.as_subclass(Marked)
    with pytest.raises(MixedDeviceError) as caught, record():
        layer(real)
    text = str(caught.value)
    assert "aten.mm.default" in text
    assert "'real' (cpu float32 (3, 4))" in text
    assert "a view of 'layer.weight' (meta float32 (2, 4))" in text
    assert "x.to('meta')" in text
