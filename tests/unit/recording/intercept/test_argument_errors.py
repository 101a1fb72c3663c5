"""Wrong arguments of optimizers, samplers, data sets and draws raise as on the CPU."""

import pytest
import torch
from torch import nn, optim
from torch.utils import data

from meta_magic import record

OPTIMIZERS = [
    optim.SGD,
    optim.Adam,
    optim.AdamW,
    optim.RMSprop,
    optim.Adagrad,
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
    "no parameters": lambda: optim.SGD([], lr=0.1),
    "no leaf": lambda: optim.SGD([made()[0] * 2], lr=0.1),
    "no tensor": lambda: optim.SGD([3], lr=0.1),
    "a parameter twice": lambda: optim.SGD([{"params": made()}] * 2, lr=0.1),
    "no closure": lambda: optim.LBFGS(made()).step(),
    "another state": lambda: optim.SGD(made(), lr=0.1).load_state_dict(
        optim.SGD([*made(), *made()], lr=0.1).state_dict()
    ),
    "no steps": lambda: optim.lr_scheduler.OneCycleLR(optim.SGD(made(), lr=0.1), 0.1),
    "negative weights": lambda: list(data.WeightedRandomSampler([-1.0, 1.0], 2)),
    "weights that are 0": lambda: list(data.WeightedRandomSampler([0.0, 0.0], 2)),
    "too many": lambda: list(data.WeightedRandomSampler([1.0], 2, replacement=False)),
    "weights of a tensor": lambda: list(
        data.WeightedRandomSampler(torch.tensor([-1.0, 2.0]), 3)
    ),
    "weights in rows": lambda: data.WeightedRandomSampler([[1.0]], 1),
    "none drawn": lambda: data.RandomSampler(range(3), num_samples=0),
    "nothing to draw": lambda: data.RandomSampler([]),
    "batches of none": lambda: data.BatchSampler(range(3), 0, False),
    "half a batch": lambda: data.BatchSampler(range(3), 1.5, False),
    "a subset's position": lambda: data.Subset(pairs(), [5])[0],
    "a loader's position": lambda: list(data.DataLoader(data.Subset(pairs(), [5]))),
    "a tensor's position": lambda: pairs()[torch.tensor([7])],
    "unlike tensors": lambda: data.TensorDataset(torch.ones(2), torch.ones(3)),
    "a split": lambda: data.random_split(pairs(), [3, 3]),
    "a loader's batch": lambda: data.DataLoader(pairs(), batch_size=0),
    "two orders": lambda: data.DataLoader(pairs(), shuffle=True, sampler=range(3)),
    "no data sets": lambda: data.ConcatDataset([]),
    "dropout": lambda: nn.Dropout(2.0),
    "bernoulli_": lambda: torch.ones(2).bernoulli_(2.0),
    "normal": lambda: torch.normal(0.0, -1.0, (2,)),
    "uniform_": lambda: torch.ones(2).uniform_(1, 0),
    "randint": lambda: torch.randint(3, 3, (2,)),
    "a tensor of parameters": lambda: optim.SGD(torch.ones(2), lr=0.1),
    "no parameter": lambda: setattr(nn.Linear(2, 2), "weight", torch.ones(2, 2)),
    "probabilities": lambda: torch.distributions.Categorical(torch.tensor([-1.0, 2])),
    "a mean of nan": lambda: torch.distributions.Normal(
        torch.ones(2).log() / 0, torch.ones(1)
    ),
    "a distribution": lambda: torch.distributions.Normal(0.0, -1.0),
}


@pytest.fixture(autouse=True)
def validated(monkeypatch):
    """Have distributions look at their arguments, which dynamo turns off for good."""
    monkeypatch.setattr(torch.distributions.Distribution, "_validate_args", True)


def outcome(call):
    """Return type and text of what a call raises, or None."""
    try:
        call()
    except Exception as error:
        return type(error), str(error)
    return None


@pytest.mark.parametrize("name", CALLS)
def test_wrong_arguments_raise_as_on_the_cpu(name):
    wanted = outcome(CALLS[name])
    with record(as_device="cpu"):
        met = outcome(CALLS[name])
    assert met == wanted
    assert wanted is not None


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_an_optimizer_refuses_what_it_does_on_the_cpu(optimizer):
    for wrong in WRONG:
        wanted = outcome(lambda: optimizer(made(), **wrong))  # noqa: B023  called at once
        with record(as_device="cpu"):
            met = outcome(lambda: optimizer(made(), **wrong))  # noqa: B023  called at once
        assert (wrong, met) == (wrong, wanted)
