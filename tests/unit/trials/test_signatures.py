"""Signatures with shapes, as jaxtyping reads them."""

import pytest
import torch
from torch import nn

from meta_magic import record
from meta_magic.errors import TrialError


class Model(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.up, self.down = nn.Linear(size, 4 * size), nn.Linear(4 * size, size)
        self.conv = nn.Conv2d(3, 4, 3, 2, 1)

    def forward(self, x, image, mask=None, *, scale=1.0):
        return self.down(self.up(x)), self.conv(image)


def test_sizes_are_names_and_what_differs_between_calls_is_none():
    with record(dims="B,T,D,S") as trace:
        B, T, D, S = 2, 5, 8, 33
        image = torch.ones(B, 3, S, S)
        model = Model(D)
        model(torch.ones(B, T, D), image, mask=torch.ones(B, T).bool())
    assert trace.annotate(model) == (
        "from jaxtyping import Bool, Float\n"
        "from torch import Tensor\n\n\n"
        'def forward(self, x: Float[Tensor, "B T D"], image: Float[Tensor, "B 3 S S"], '
        'mask: Bool[Tensor, "B T"] | None = None, *, scale = 1.0) -> '
        'tuple[Float[Tensor, "B T D"], Float[Tensor, "B 4 -(-S//2) -(-S//2)"]]: ...\n'
    )
    linear = trace.annotate(nn.Linear)
    assert 'input: Float[Tensor, "B T _"]) -> Float[Tensor, "B T _"]: ...' in linear


def test_without_names_sizes_are_numbers_and_a_class_must_be_called():
    with record() as trace:
        nn.Flatten()(torch.ones(2, 3, 5).long())
    wanted = 'input: Int[Tensor, "2 3 5"]) -> Int[Tensor, "2 15"]'
    assert wanted in trace.annotate(nn.Flatten)
    with pytest.raises(TrialError, match="no call of a Linear"):
        trace.annotate(nn.Linear)
