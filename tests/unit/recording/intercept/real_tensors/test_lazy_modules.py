"""Modules whose first call decides sizes, made before the cell that calls them."""

import contextlib

import pytest
import torch
from torch import nn

from meta_magic import materialize, record

X = torch.linspace(-1, 1, 2 * 3 * 8 * 8).view(2, 3, 8, 8)


def build():
    torch.manual_seed(0)
    return nn.Sequential(
        *(nn.LazyConv2d(4, 3), nn.LazyBatchNorm2d(), nn.ReLU(), nn.Flatten()),
        *(nn.LazyLinear(5), nn.BatchNorm1d(5), nn.Linear(5, 2)),
    )


def call(model):
    return model(torch.ones(2, 3, 8, 8)).sum()


def call_without_gradients(model):
    with torch.no_grad():
        return model(X).sum()


def train(model):
    model(X)
    model.apply(draw_weights)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        loss = model(X).square().sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return loss


def draw_weights(module):
    if type(module) is nn.Linear:
        nn.init.normal_(module.weight)


def call_parts_before(model):
    model[5](torch.ones(2, 5))
    model[6](torch.ones(2, 5))
    return model(X).sum()


def initialize(model):
    model[0].initialize_parameters(X)
    return model(X).sum()


def move(model):
    return model.to("cpu")(X).sum()


PROGRAMS = [call, call_without_gradients, train, call_parts_before, initialize, move]


def run(program, model):
    torch.manual_seed(1)
    return program(model).item()


@pytest.mark.parametrize("program", PROGRAMS)
def test_it_has_the_values_of_the_cpu_in_the_cell_and_when_it_is_made_real(program):
    model, wanted = build(), build()
    with record():
        value = run(program, model)
    assert value == run(program, wanted)
    materialize(model)
    assert str(model) == str(wanted)
    states = model.state_dict(), wanted.state_dict()
    assert states[0].keys() == states[1].keys()
    for name, tensor in states[0].items():
        assert torch.equal(tensor, states[1][name]), name


def test_the_next_cell_calls_it_again():
    model, wanted = build(), build()
    with record():
        first = run(call, model)
    with record():
        second = run(call, model)
    assert (first, second) == (run(call, wanted), run(call, wanted))


def test_a_note_says_that_it_stays_on_meta():
    net = build()
    with record() as trace:
        net(X)
    (text,) = [note.text for note in trace.notes if note.kind == "state"]
    assert "lazy parameters of 'net'" in text
    assert "mm.materialize" in text
    assert all(tensor.is_meta for tensor in net.state_dict().values())


CONVERSIONS = {
    "double": nn.Module.double,
    "there and back": lambda layer: layer.half().double(),
    "device and dtype": lambda layer: layer.to("cpu", torch.float64),
}


@pytest.mark.parametrize("convert", CONVERSIONS.values(), ids=CONVERSIONS)
def test_a_dtype_is_given_before_a_lazy_module_knows_its_shapes(convert):
    given = torch.ones(2, 5, dtype=torch.float64)
    called = []
    for block in (contextlib.nullcontext(), record()):
        torch.manual_seed(0)
        with block:
            model = convert(nn.Sequential(nn.LazyLinear(3), nn.LazyBatchNorm1d()))
            called.append(model(given).tolist())
    assert called[0] == called[1]
