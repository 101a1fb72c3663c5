"""Layers that somebody changed or looks at are not served whole."""

import warnings
from functools import partial
from unittest import mock

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.nn.modules import module as hooks_of_all
from torch.nn.utils import parametrizations, prune, spectral_norm, weight_norm
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from tests.unit.recording.intercept.layer_programs import (
    LAYERS,
    Block,
    assert_recorded_alike,
    call_inside,
    relu_wrongly,
)


def call_before_and_after(change, layer=None, undo=lambda: None):
    """Call a layer until it is known, change something, and call it again."""
    block = Block(layer or nn.Linear(4, 4), nn.ReLU())
    for _ in range(2):
        call_inside(block, torch.ones(2, 4))
    try:
        change(block.layers[0])
        for _ in range(2):
            call_inside(block, torch.ones(2, 4))
    finally:
        undo()
    call_inside(block, torch.ones(2, 4))


KINDS = ("forward", "forward_pre", "full_backward", "full_backward_pre")


def hook_layers():
    met = []
    for kind in KINDS:
        call_before_and_after(partial(hook, kind, met))
    return met


def hook(kind, met, layer):
    return getattr(layer, f"register_{kind}_hook")(lambda *_: met.append(kind))


def hook_all_layers():
    met, handles = [], []
    for kind in KINDS:
        register = getattr(hooks_of_all, f"register_module_{kind}_hook")
        call_before_and_after(
            lambda _, kind=kind, register=register: handles.append(
                register(lambda *_: met.append(kind))
            ),
            undo=lambda: handles.pop().remove(),
        )
    return met


def set_forward():
    def change(layer):
        layer.forward = lambda x: x + 1

    call_before_and_after(change)


def set_call_impl():
    def change(layer):
        layer._call_impl = lambda x: x + 1

    call_before_and_after(change)


def compile_layer():
    call_before_and_after(lambda layer: layer.compile())


def patch_class(owner, name, value):
    patch = mock.patch.object(owner, name, value)
    call_before_and_after(lambda _: patch.start(), undo=patch.stop)
    with patch:
        call_before_and_after(lambda _: None)


def patch_forward():
    patch_class(nn.Linear, "forward", lambda self, x: x + 1)


def patch_function():
    patch_class(functional, "linear", lambda x, weight, bias: x @ weight)
    patch_class(functional, "relu", relu_wrongly)


def patch_call():
    patch_class(nn.Linear, "__call__", lambda self, x: x + 1)
    patch_class(nn.Module, "__call__", lambda self, x: self.forward(x + 1))


def patch_call_impl():
    call = nn.Module._call_impl
    patch_class(nn.Module, "_call_impl", lambda self, x: call(self, x + 1))


def patch_convolution():
    def convolve(self, x, weight, bias):
        return x + 1

    def change(layer):
        layer._conv_forward = partial(convolve, None)  # no cycle

    call_before_and_after(change, nn.Conv1d(2, 2, 1))
    patch = mock.patch.object(nn.Conv1d, "_conv_forward", convolve)
    call_before_and_after(lambda _: patch.start(), nn.Conv1d(2, 2, 1), patch.stop)


def patch_and_call_before():
    call = nn.Linear.__call__
    patch_class(nn.Linear, "__call__", lambda self, x: call(self, x) + 1)


class Other(nn.Module):
    def __call__(self, x):
        return super().__call__(x + 1)


class Both(nn.Linear, Other):
    pass


class Own(nn.Linear):
    def forward(self, x):
        return super().forward(x) + 1


def call_subclasses():
    for kind in (Both, Own):
        call_before_and_after(lambda _: None, kind(4, 4))


CHANGES = {
    "parametrized by norm": parametrizations.weight_norm,
    "parametrized by spectrum": parametrizations.spectral_norm,
    "norm": weight_norm,
    "spectrum": spectral_norm,
    "pruned": lambda layer: prune.random_unstructured(layer, "weight", 0.5),
}


@pytest.mark.filterwarnings("ignore:.*weight_norm:FutureWarning")
@pytest.mark.parametrize("name", CHANGES)
def test_a_layer_whose_weight_is_computed_is_recorded_as_it_is(name):
    assert_recorded_alike(lambda: call_before_and_after(CHANGES[name]))


def replace_weight():
    def put_aside(layer):
        vars(layer)["weight"] = torch.ones(5, 4)

    def put_plain(layer):
        del layer.weight
        layer.weight = torch.ones(4, 4)

    def put_other(layer):
        layer.weight = nn.Parameter(torch.ones(4, 4, dtype=torch.float))
        layer.bias = None

    for change in (put_other, put_plain):
        call_before_and_after(change)
    layer = nn.Linear(4, 4)
    for _ in range(2):
        call_inside(layer, torch.ones(2, 4))
    put_aside(layer)
    return call_inside(layer, torch.ones(2, 4)).shape


class Functions(TorchFunctionMode):
    def __init__(self):
        super().__init__()
        self.met = []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.met.append(getattr(func, "__name__", ""))
        return func(*args, **(kwargs or {}))


class Operators(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.met = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.met.append(str(func))
        return func(*args, **(kwargs or {}))


def look_on():
    functions, operators = Functions(), Operators()
    for around in (
        functions,
        operators,
        torch._C.DisableTorchFunction(),
        torch._C.DisableTorchFunctionSubclass(),
        torch.autocast("cpu"),
        torch.device("cpu"),
        torch.inference_mode(),
    ):
        block = Block(nn.Linear(4, 4), nn.Dropout())
        x = torch.ones(2, 4)
        call_inside(block, x)
        with around:
            call_inside(block, x)

        def call(x, block=block, around=around):
            block(x)
            with around:
                block(x)
            block(x)

        call_inside(call, x)
    return functions.met, operators.met


def patch_parts():
    doubled = property(lambda self: self._parameters["weight"] * 2)
    patch = mock.patch.object(nn.Linear, "weight", doubled, create=True)
    call_before_and_after(lambda _: patch.start(), undo=patch.stop)
    find = nn.Module.__getattr__
    patch_class(nn.Module, "__getattr__", lambda self, name: find(self, name) * 1)


def look_at_class():
    names = {kind.__call__.__qualname__ for kind in LAYERS}
    return names, {kind.__call__.__name__ for kind in LAYERS}


PROGRAMS = (
    hook_layers,
    hook_all_layers,
    set_forward,
    set_call_impl,
    compile_layer,
    patch_forward,
    patch_function,
    patch_call,
    patch_call_impl,
    patch_and_call_before,
    patch_convolution,
    patch_parts,
    call_subclasses,
    replace_weight,
    look_on,
    look_at_class,
)


@pytest.mark.parametrize("program", PROGRAMS)
def test_what_somebody_changed_is_recorded_as_it_is(program):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert_recorded_alike(program)
