"""Layers that are served whole are recorded as if all of torch had run."""

import pytest
import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from meta_magic.recording.intercept.layers import LAYERS
from meta_magic.session.record import record
from meta_magic.session.recording import shared_cache_by_device
from tests.unit.recording.intercept.layer_programs import (
    Block,
    Calling,
    assert_recorded_alike,
    call_inside,
    count_forwards,
)

SERVED = {
    "linear": lambda: [nn.Linear(4, 4)],
    "linear without bias": lambda: [nn.Linear(4, 4, bias=False)],
    "norm": lambda: [nn.LayerNorm(4)],
    "norm without bias": lambda: [nn.LayerNorm((3, 4), bias=False, eps=1e-3)],
    "norm without weight": lambda: [nn.LayerNorm(4, elementwise_affine=False)],
    "dropout": lambda: [nn.Dropout(0.25)],
    "dropouts": lambda: [nn.Dropout(p) for p in (0.0, 0.5, 1.0)],
    "relu": lambda: [nn.ReLU()],
    "silu": lambda: [nn.SiLU()],
    "gelu": lambda: [nn.GELU()],
    "gelu of tanh": lambda: [nn.GELU(approximate="tanh")],
    "many": lambda: [nn.Linear(4, 4), nn.GELU(), nn.Linear(4, 4), nn.LayerNorm(4)],
    "eval": lambda: [nn.Dropout().eval(), nn.Linear(4, 4), nn.Dropout().eval()],
    "inplace": lambda: [nn.ReLU(inplace=True), nn.SiLU(True), nn.Dropout(0.5, True)],
    "double": lambda: [nn.Linear(4, 4, dtype=torch.double).to(torch.float)],
}
OTHERS = {
    "rms norm": lambda: nn.RMSNorm(4),
    "rms norm without weight": lambda: nn.RMSNorm(4, 1e-3, elementwise_affine=False),
    "groups": lambda: nn.GroupNorm(2, 4),
    "groups without weight": lambda: nn.GroupNorm(2, 4, affine=False),
    "conv": lambda: nn.Conv1d(4, 2, 3),
    "conv without bias": lambda: nn.Conv1d(4, 2, 3, 2, "valid", 2, bias=False),
    "conv 2": lambda: nn.Conv2d(4, 4, 3, padding="same", groups=2),
    "conv 3": lambda: nn.Conv3d(4, 2, (1, 2, 3), padding=1),
    "conv of a ring": lambda: nn.Conv2d(4, 4, 3, padding=1, padding_mode="circular"),
    "embedding": lambda: nn.Embedding(9, 4),
    "embedding that pads": lambda: nn.Embedding(9, 4, padding_idx=-1),
    "embedding of norm": lambda: nn.Embedding(9, 4, max_norm=1.0),
}


def make_input(layer):
    if isinstance(layer, nn.Embedding):
        return torch.arange(8).view(2, 4)
    n_sizes = {nn.Conv1d: 1, nn.Conv2d: 2, nn.Conv3d: 3, nn.GroupNorm: 2}
    n = n_sizes.get(type(layer), 0)
    return torch.ones(2, 4, *[8] * n)


class Functions(TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.met = func, args, kwargs or {}
        return func(*args, **(kwargs or {}))


def make_all():
    made = {name: make()[0] for name, make in SERVED.items()}
    return {**made, **{name: make() for name, make in OTHERS.items()}}


@pytest.mark.parametrize("layer", LAYERS, ids=lambda layer: layer.name)
def test_what_a_layer_gives_is_read_as_a_mode_is_given_it(layer):
    made = [module for module in make_all().values() if type(module) is layer.kind]
    for module in made:
        if getattr(module, "padding_mode", "zeros") != "zeros":
            continue
        x = torch.ones(3, 4) if type(module) is nn.LayerNorm else make_input(module)
        with Functions() as functions:
            module.forward(x)
        func, args, kwargs = functions.met
        read, named = layer.read(module, x)
        assert func is layer.function
        assert [*map(id, args)] == [*map(id, read)]
        assert [*kwargs.items()] == [*(named or {}).items()]
    assert made


@pytest.mark.parametrize("grad", ["no_grad", "inference", "grad"])
@pytest.mark.parametrize("name", OTHERS)
def test_another_served_layer_is_recorded_as_if_it_had_run(name, grad):
    def program():
        layer = OTHERS[name]()
        with GRADIENTS[grad]():
            for _ in range(2):
                block = Calling(lambda x, layer=layer: (layer(x), layer(x)), layer)
                block(make_input(layer))
                block(make_input(layer)[:1])
        call_inside(layer, make_input(layer)[0])

    assert_recorded_alike(program)


GRADIENTS = {
    "no_grad": torch.no_grad,
    "inference": torch.inference_mode,
    "grad": torch.enable_grad,
}


@pytest.mark.parametrize("grad", GRADIENTS)
@pytest.mark.parametrize("name", SERVED)
def test_a_served_layer_is_recorded_as_if_it_had_run(name, grad):
    def program():
        block = Block(*SERVED[name]())
        with GRADIENTS[grad]():
            for size in (3, 3, 2 if name != "norm without bias" else 3):
                block(torch.ones(size, 4, requires_grad=size == 2))
                block(torch.ones(4, size).T)
        if grad == "grad" and name != "inplace":
            block(torch.ones(3, 4, requires_grad=True)).sum().backward()

    assert_recorded_alike(program)


@pytest.mark.parametrize("kind", [layer.kind for layer in LAYERS])
def test_a_known_layer_is_served_without_its_forward(kind):
    layer = next(made for made in make_all().values() if type(made) is kind)
    block = Calling(lambda x: (layer(x), layer(x)), layer.to("meta"))
    shared_cache_by_device.clear()  # what was met in other modes, too

    def program():
        with record(), torch.no_grad():
            x = make_input(layer)
            layer(x)  # alone it is called as ever
            n_run.append(count_forwards(lambda: [block(x) for _ in range(4)]))

    n_run = []
    program()
    program()
    assert n_run[-1] == 0
    with record(cache=False), torch.no_grad():
        assert count_forwards(lambda: block(make_input(layer))) == 2


def test_a_layer_for_which_a_gradient_is_recorded_is_not_served():
    block = Block(nn.Linear(4, 4)).to("meta")
    for _ in range(2):
        with record():
            assert count_forwards(lambda: block(torch.ones(3, 4))) == 2


def test_a_layer_of_an_earlier_recording_is_recorded_alike():
    def program(cache):
        with record(cache=cache):
            block = Block(nn.Linear(4, 4), nn.LayerNorm(4))
            x = torch.ones(3, 4)
        with record(cache=cache) as trace, torch.no_grad():
            block(x)
            block(x[1:])
        program = trace.program
        return program.words, program.module_rows, program.module_values

    found = [program(cache) for cache in (False, True, True, True)]
    assert found == found[:1] * 4
