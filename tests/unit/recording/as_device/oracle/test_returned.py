"""What the CPU returns of a call that it was asked about is what the recording has."""

import pytest
import torch
from torch.nn import functional as F

from meta_magic import record


def classes(*shape):
    return torch.zeros(shape, dtype=torch.long)


def unpool():
    values = torch.rand(1, 3, 2, 2).to(memory_format=torch.channels_last)
    return F.max_unpool2d(values, classes(1, 3, 2, 2), 2)


CALLS = {
    "a loss of one": lambda: F.multi_margin_loss(
        torch.rand(4), classes(), reduction="none"
    ),
    "a loss of the labels of one": lambda: F.multilabel_margin_loss(
        torch.rand(4), classes(4), reduction="none"
    ),
    "losses of some": lambda: F.multi_margin_loss(
        torch.rand(3, 4), classes(3), reduction="none"
    ),
    "what was pooled": unpool,
}


@pytest.mark.parametrize("name", CALLS)
def test_it_has_the_shape_and_the_strides_of_the_cpu(name):
    wanted = CALLS[name]()
    with record(as_device="cpu"):
        met = [CALLS[name](), CALLS[name]()]  # run, and served
    for tensor in met:
        assert (tensor.shape, tensor.stride()) == (wanted.shape, wanted.stride())
