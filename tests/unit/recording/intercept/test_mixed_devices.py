"""Real tensors that meet meta tensors; the cases are those of torch 2.13."""

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils import data

from meta_magic import MixedDeviceError, record
from tests.unit.recording.intercept.data_of_cells import pairs

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


def test_a_real_batch_in_a_module_of_the_cell_is_explained():
    loader = data.DataLoader(pairs(), batch_size=20)
    with pytest.raises(RuntimeError) as caught, record():
        model = nn.Linear(4, 3)
        for x, _ in loader:
            model(x)
    (note,) = caught.value.__notes__
    assert "'x' (cpu float32 (20, 4)) is real" in note
    assert "'self.bias' of Linear (meta float32 (3,)) is meta" in note
    assert "mm.meta_like(x)" in note


def test_what_torch_refuses_before_any_operator_is_explained_once():
    real = torch.ones(5, 4)
    with pytest.raises(RuntimeError, match="same device") as caught, record():
        nn.LSTM(4, 3)(real)
    (note,) = caught.value.__notes__
    assert "a view of 'real' (cpu float32 (5, 4)) is real" in note
    assert "'self.weight_ih_l0' of LSTM" in note


def test_an_error_about_something_else_is_left_alone():
    real = torch.ones(3)
    with pytest.raises(RuntimeError, match="Expected size") as caught, record():
        torch.bmm(torch.ones(1, 2, 3), real.view(1, 1, 3))
    assert not hasattr(caught.value, "__notes__")
    with pytest.raises(RuntimeError, match="requires grad") as caught, record():
        torch.ones(3, requires_grad=True).numpy()
    assert not hasattr(caught.value, "__notes__")


def test_a_real_parameter_has_an_advice_of_its_own():
    state = nn.Linear(4, 3).state_dict()
    with pytest.raises(RuntimeError) as caught, record():
        model = nn.Linear(4, 3)
        model.load_state_dict(state, assign=True)
        model(torch.ones(2, 4))
    (note,) = caught.value.__notes__
    assert "'self.bias' of Linear (cpu float32 (3,)) is real" in note
    assert "Build its module in the cell" in note
    assert "assign=True puts real tensors there" in note
