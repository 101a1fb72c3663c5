"""Tensors from constructors that take no device."""

import pytest
import torch
from torch import nn

from meta_magic import record


def test_a_legacy_constructor_is_on_meta():
    with record() as trace:
        made = nn.Parameter(torch.Tensor(2, 3)), torch.FloatTensor(4)
        with torch.device("cpu"):
            real = torch.Tensor(2)
    assert [t.is_meta for t in (*made, real)] == [True, True, False]
    assert [t.shape for t in made] == [(2, 3), (4,)]
    assert trace.nbytes_real == 2 * 4


def test_a_real_tensor_is_filled_by_a_factory_that_is_given_it():
    def fill():
        with torch.device("cpu"):
            real = torch.empty(2)
        torch.full((2,), 3.0, out=real)
        torch.manual_seed(0)
        drawn = torch.randn(2, out=real)
        assert drawn is real
        return real.tolist()

    with record():
        met = fill()
    assert met == fill()


@pytest.mark.parametrize("layer", [nn.Linear, nn.Embedding, nn.LSTM])
def test_a_layer_that_is_told_the_cpu_by_name_stays_on_meta(layer):
    with record() as trace:
        made = layer(2, 3, device="cpu")
    assert all(p.is_meta for p in made.parameters())
    assert trace.nbytes_real == 0
