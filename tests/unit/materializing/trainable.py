"""Modules that change when they are used, or that are special in their construction."""

import copy

import torch
from torch import nn
from torch.nn.utils import parametrizations


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(11, 6)
        self.lstm = nn.LSTM(6, 5, num_layers=2, dropout=0.1, bidirectional=True)
        self.head = nn.Linear(10, 3)

    def forward(self, x):
        return self.head(self.lstm(self.embed(x.long().abs() % 11))[0])


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(9, 4)
        self.head = nn.Linear(4, 9, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, x):
        return self.head(self.embed(x.long().abs() % 9))


class Probing(nn.Module):
    """Finds out the size of its head by a call in its construction."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6))
        self.head = nn.Linear(self.body(torch.randn(3, 4)).shape[1], 2)

    def forward(self, x):
        return self.head(self.body(x))


class Quantizer(nn.Module):
    """Keeps moving averages that its forward writes."""

    def __init__(self):
        super().__init__()
        self.register_buffer("codes", torch.randn(7, 4))
        self.register_buffer("n_used", torch.zeros(7))
        self.scale = nn.Parameter(torch.full((4,), 0.5))

    def forward(self, x):
        self.n_used.mul_(0.9).add_(1)
        self.codes.lerp_(x.mean(0).expand(7, 4), 0.1)
        return x * self.scale


def convolutions():
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1),
        nn.BatchNorm2d(4, momentum=None),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(64, 2),
    )


def initialized():
    def init(module):
        if hasattr(module, "weight"):
            nn.init.orthogonal_(module.weight)
            module.bias.data.fill_(0.25)

    return nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2)).apply(init)


def initialized_with_a_parametrization():
    model = nn.Sequential(parametrizations.weight_norm(nn.Linear(4, 4)))
    assert model[0].weight.shape == (4, 4)
    with torch.no_grad():
        model[0].parametrizations.weight.original1.mul_(2)
        model[0].bias.zero_()
    return model


SEQUENCE = (5, 4)
BUILDS = {
    "linear layers": lambda: nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 2)),
    "convolutions with batch norm": convolutions,
    "LSTM": Tagger,
    "norm and dropout": lambda: nn.Sequential(nn.LayerNorm(4), nn.Dropout(0.5)),
    "transformer": lambda: nn.TransformerEncoderLayer(4, 2, 8),
    "tied weights": Tied,
    "weight norm": lambda: parametrizations.weight_norm(nn.Linear(4, 3)),
    "spectral norm": lambda: parametrizations.spectral_norm(nn.Linear(4, 3)),
    "orthogonal": lambda: parametrizations.orthogonal(nn.Linear(4, 4)),
    "initialized afterwards": initialized,
    "parametrized and initialized afterwards": initialized_with_a_parametrization,
    "probing itself": Probing,
    "moving averages": Quantizer,
    "deep copy": lambda: copy.deepcopy(nn.Sequential(nn.Linear(4, 4))),
    "half precision": lambda: nn.Sequential(nn.Linear(4, 4)).bfloat16().float(),
    "instance norm": lambda: nn.Sequential(
        nn.Unflatten(1, (2, 2)), nn.InstanceNorm1d(2, track_running_stats=True)
    ),
}
