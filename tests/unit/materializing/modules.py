"""Modules to materialize, by what is special about them."""

import copy

import torch
from torch import nn
from torch.nn.utils import parametrizations

from meta_magic import record


class Masked(nn.Module):
    """Holds tensors in every way that a module can."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 4)
        self.register_buffer("mask", torch.ones(4, 4).tril(), persistent=False)
        self.register_buffer("steps", torch.arange(5))
        self.scale = torch.rand(2) * 3
        self.listed = [torch.randn(2), torch.randn(3)]
        self.mapped = {"deep": (torch.full((2,), 7.0),)}


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(10, 4)
        self.head = nn.Linear(4, 10, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, x):
        return self.head(self.embed(x.long().abs() % 10))


class Shared(nn.Module):
    """Two parameters on one storage, with different views of it."""

    def __init__(self):
        super().__init__()
        flat = torch.randn(6)
        self.upper = nn.Parameter(flat[:2])
        self.matrix = nn.Parameter(flat.view(2, 3).t())


class Raw(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(3))
        self.bias = nn.Parameter(torch.zeros(3))


def register(tensor):
    module = nn.Module()
    module.register_buffer("buffer", tensor)
    return module


def holding(**tensors):
    """Return a module that holds tensors as parameters or buffers."""
    module = nn.Module()
    for name, tensor in tensors.items():
        if isinstance(tensor, nn.Parameter):
            module.register_parameter(name, tensor)
        else:
            module.register_buffer(name, tensor)
    return module


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(11, 6)
        self.lstm = nn.LSTM(6, 5, num_layers=2, dropout=0.1, bidirectional=True)
        self.head = nn.Linear(10, 3)

    def forward(self, x):
        return self.head(self.lstm(self.embed(x.long().abs() % 11))[0])


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
TRAINABLE = {
    "convolutions with batch norm": convolutions,
    "LSTM": Tagger,
    "norm and dropout": lambda: nn.Sequential(nn.LayerNorm(4), nn.Dropout(0.5)),
    "tied weights": Tied,
    "weight norm": lambda: parametrizations.weight_norm(nn.Linear(4, 3)),
    "spectral norm": lambda: parametrizations.spectral_norm(nn.Linear(4, 3)),
    "orthogonal": lambda: parametrizations.orthogonal(nn.Linear(4, 4)),
    "initialized afterwards": initialized,
    "parametrized and initialized afterwards": initialized_with_a_parametrization,
    "probing itself": Probing,
    "moving averages": Quantizer,
    "deep copy": lambda: copy.deepcopy(nn.Sequential(nn.Linear(4, 4))),
    "instance norm": lambda: nn.Sequential(
        nn.Unflatten(1, (2, 2)), nn.InstanceNorm1d(2, track_running_stats=True)
    ),
}


def build_norm():
    return nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))


def recorded():
    with record():
        return build_norm()


def holding_odd(tensor, kind="buffer"):
    module = nn.Module()
    if kind == "buffer":
        module.register_buffer("odd", tensor)
    else:
        module.odd = nn.Parameter(tensor, requires_grad=False)
    return module
