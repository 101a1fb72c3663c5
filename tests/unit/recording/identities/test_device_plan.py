"""Real models that a cell moves: the next one finds them there."""

import pytest
import torch
from torch import nn

from meta_magic import record
from meta_magic.recording.identities import device_plan
from meta_magic.recording.identities.device_plan import has_carried_placement


@pytest.fixture(autouse=True)
def _nothing_left(monkeypatch):
    """Forget what other tests moved that is alive."""
    monkeypatch.setattr(device_plan, "kept_placements", {})


def build():
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8))


def test_the_next_cell_finds_a_real_model_where_a_cell_moved_it():
    model, other, x = build(), build(), torch.ones(2, 4)
    with record():
        model.to("cuda:1")
    with record():
        assert str(model[0].weight.device) == "cuda:1"
        assert model[0].weight.is_cuda
        assert model[0].weight.get_device() == torch.get_device(model[0].bias) == 1
        assert str(torch.zeros_like(model[0].weight).device) == "cuda:1"
        assert str(model[0].weight.new(2, 3).device) == "cuda:1"
        assert str(model(x.to("cuda:1")).device) == "cuda:1"
        with pytest.raises(RuntimeError, match="at least two devices"):
            other(x.to("cuda:1"))
        assert str(model[1].running_mean.device) == "cuda:1"
        model.cpu()
    assert not has_carried_placement()
    with record():
        assert model[0].weight.device.type == model(x).device.type == "cpu"
