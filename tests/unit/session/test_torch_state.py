"""A recording leaves torch, the user's tensors and their memory as they were."""

import gc
import weakref

import pytest
import torch
from torch import nn

from meta_magic.session.record import record


def storage_ref(tensor: torch.Tensor) -> weakref.ref:
    return weakref.ref(tensor.untyped_storage())


def record_training(*, cache: bool):
    with record(cache=cache) as trace:
        model = nn.Sequential(nn.Linear(4, 2), nn.Tanh())
        y = model(torch.randn(3, 4))
        y.sum().backward()
    return trace, model, y


def record_forward(function, *, cache: bool) -> torch.Tensor:
    with record(cache=cache):
        return function(torch.randn(3, requires_grad=True))


@pytest.mark.parametrize("cache", [True, False])
def test_storages_are_freed_although_the_trace_is_kept(cache):
    trace, model, y = record_training(cache=cache)
    refs = [storage_ref(p) for p in model.parameters()] + [storage_ref(y)]
    module = weakref.ref(model)
    del model, y
    gc.collect()
    assert [ref() for ref in refs] == [None] * 3
    assert module() is None
    assert len(trace.modules) == 1


@pytest.mark.parametrize("cache", [True, False])
def test_del_in_the_function_that_recorded_frees_at_once(cache):
    with record(cache=cache) as trace:
        x = torch.randn(3)
        y = x.sin().view(3, 1)
    refs = [storage_ref(x), storage_ref(y)]
    del x, y
    assert [ref() for ref in refs] == [None, None]
    assert len(trace.ops) == 3


@pytest.mark.parametrize("cache", [True, False])
def test_del_inside_of_the_block_frees_at_once(cache):
    with record(cache=cache):
        x = torch.randn(3)
        ref = storage_ref(x)
        del x
        is_freed = ref() is None
    assert is_freed


@pytest.mark.parametrize("cache", [True, False])
@pytest.mark.parametrize("function", [torch.tanh, torch.relu, torch.exp, torch.sqrt])
def test_a_graph_that_never_ran_backward_is_freed(function, cache):
    for _ in range(3):  # the third time all signatures are known
        y = record_forward(function, cache=cache)
        ref = storage_ref(y)
        del y
        gc.collect()
    assert ref() is None


def test_no_weak_reference_to_a_parameter_is_left():
    with record() as trace:
        model = nn.Linear(4, 2)
        model(torch.randn(3, 4)).sum().backward()
    assert [weakref.getweakrefcount(p) for p in model.parameters()] == [0, 0]
    assert [weakref.getweakrefcount(p.grad) for p in model.parameters()] == [0, 0]
    assert trace.error is None


def test_no_weak_reference_to_a_parameter_is_held_meanwhile():
    with record():
        model = nn.Linear(4, 2)
        model(torch.randn(3, 4))
        counts = [weakref.getweakrefcount(p) for p in model.parameters()]
    assert counts == [0, 0]


def test_the_generator_of_torch_is_untouched():
    torch.manual_seed(0)
    expected = torch.rand(3)
    torch.manual_seed(0)
    with record():
        torch.randn(5)
        nn.Linear(3, 3)
        nn.functional.dropout(torch.randn(4))
    assert torch.equal(torch.rand(3), expected)


def test_a_recording_within_a_device_context_leaves_that_context():
    with torch.device("cpu"):
        with record():
            assert torch.ones(1).is_meta
        assert torch.ones(1).device.type == "cpu"
        assert torch.get_default_device().type == "cpu"


def test_no_table_of_hooks_is_longer_after_a_recording():
    module = torch.nn.modules.module
    there = vars(module)
    tables = [
        n for n in there if n.startswith("_global_") and isinstance(there[n], dict)
    ]
    before = {name: len(there[name]) for name in tables}
    with record():
        nn.Linear(2, 2)(torch.ones(2))
    assert len(tables) > 4
    assert {name: len(there[name]) for name in tables} == before
