"""What a value may take where nobody says more."""

import torch
from torch import nn

from meta_magic import ValueLimits, record


def test_the_loss_of_a_convolutional_network_is_had_without_an_option():
    """As of a first training script: 1.5 GFLOPs for 64 handwritten digits."""

    def train():
        torch.manual_seed(0)
        convolutions = nn.Conv2d(1, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3)
        model = nn.Sequential(*convolutions, nn.MaxPool2d(2), nn.Flatten())
        return model(torch.randn(64, 1, 28, 28)).square().mean().item()

    with record() as trace:
        met = train()
    assert met == train()
    assert trace.program.evaluations[0].flops > 10**9


def test_a_large_draw_of_no_use_takes_little_of_a_value():
    def draw():
        torch.manual_seed(0)
        large = torch.randn(3000, 3000)
        return large, torch.rand(3000, 3000), torch.randint(0, 9, (3,)).tolist()

    wanted = draw()[-1]
    with record(limits=ValueLimits(nbytes=2**24)):
        assert draw()[-1] == wanted
