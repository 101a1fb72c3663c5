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


@pytest.mark.parametrize("layer", [nn.Linear, nn.Embedding, nn.LSTM])
def test_a_layer_that_is_told_the_cpu_by_name_stays_on_meta(layer):
    with record() as trace:
        made = layer(2, 3, device="cpu")
    assert all(p.is_meta for p in made.parameters())
    assert trace.nbytes_real == 0
