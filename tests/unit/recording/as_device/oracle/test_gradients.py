"""What the CPU says of functions that look at who wants a gradient."""

from functools import partial

import pytest
import torch
from torch import nn

from meta_magic import record

MODES = {
    "grad": torch.enable_grad,
    "no grad": torch.no_grad,
    "inference": torch.inference_mode,
}


def call_layer(mode, is_trained):
    layer = nn.Linear(3, 4).requires_grad_(is_trained)
    across = torch.ones(5, 2, 3, dtype=torch.double).transpose(0, 1)
    with mode():
        layer(across)


def attend(mode, is_trained):
    layer = nn.MultiheadAttention(8, 2, batch_first=True).requires_grad_(is_trained)
    given = torch.ones(2, 3, 8, dtype=torch.double)
    with mode():
        layer(given, given, given)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("is_trained", [False, True])
@pytest.mark.parametrize("run", [call_layer, attend])
def test_a_dtype_is_refused_in_the_words_of_the_cpu(run, is_trained, mode):
    call = partial(run, MODES[mode], is_trained)
    with pytest.raises(RuntimeError) as wanted:
        call()
    with record(as_device="cpu"), pytest.raises(RuntimeError) as met:
        call()
    assert str(met.value) == str(wanted.value)
