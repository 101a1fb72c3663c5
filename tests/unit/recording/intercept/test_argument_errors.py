"""Wrong arguments of optimizers, samplers, data sets and draws raise as on the CPU."""

from functools import partial

import pytest
import torch
from torch import nn, optim
from torch.utils import data

from tests.unit.eager import assert_refused_alike, assert_same, outcome

OPTIMIZERS = [
    optim.SGD,
    optim.Adam,
    optim.LBFGS,
    optim.Muon,
]
WRONG = [
    {"lr": -1.0},
    {"weight_decay": -1.0},
    {"momentum": -1.0},
    {"betas": (2.0, 0.9)},
    {"eps": -1.0},
    {"bogus": 1},
    {"lr": torch.tensor([1.0, 2.0])},
    {"nesterov": True},
    {"foreach": True, "fused": True},
]


def made():
    return [nn.Parameter(torch.ones(2))]


def pairs():
    return data.TensorDataset(torch.ones(4))


CALLS = {
    "another state": lambda: optim.SGD(made(), lr=0.1).load_state_dict(
        optim.SGD([*made(), *made()], lr=0.1).state_dict()
    ),
    "negative weights": lambda: list(data.WeightedRandomSampler([-1.0, 1.0], 2)),
    "weights that are 0": lambda: list(data.WeightedRandomSampler([0.0, 0.0], 2)),
    "weights of a tensor": lambda: list(
        data.WeightedRandomSampler(torch.tensor([-1.0, 2.0]), 3)
    ),
    "a subset's position": lambda: data.Subset(pairs(), [5])[0],
    "a loader's position": lambda: list(data.DataLoader(data.Subset(pairs(), [5]))),
    "a tensor's position": lambda: pairs()[torch.tensor([7])],
    "dropout": lambda: nn.Dropout(2.0),
    "bernoulli_": lambda: torch.ones(2).bernoulli_(2.0),
    "normal": lambda: torch.normal(0.0, -1.0, (2,)),
    "uniform_": lambda: torch.ones(2).uniform_(1, 0),
    "randint": lambda: torch.randint(3, 3, (2,)),
    "no parameter": lambda: setattr(nn.Linear(2, 2), "weight", torch.ones(2, 2)),
    "probabilities": lambda: torch.distributions.Categorical(torch.tensor([-1.0, 2])),
    "a mean of nan": lambda: torch.distributions.Normal(
        torch.ones(2).log() / 0, torch.ones(1)
    ),
}


@pytest.fixture(autouse=True)
def validated(monkeypatch):
    """Have distributions look at their arguments, which dynamo turns off for good."""
    monkeypatch.setattr(torch.distributions.Distribution, "_validate_args", True)


@pytest.mark.parametrize("name", CALLS)
def test_wrong_arguments_raise_as_on_the_cpu(name):
    assert_refused_alike(CALLS[name], as_device="cpu")


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_an_optimizer_refuses_what_it_does_on_the_cpu(optimizer):
    for wrong in WRONG:
        call = partial(lambda wrong: optimizer(made(), **wrong), wrong)
        assert_same(partial(outcome, call), as_device="cpu")
