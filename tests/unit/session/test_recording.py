"""The trace of a recording, and what a recording leaves: equal traces, free memory."""

import gc
import weakref
from importlib import import_module

import pytest
import torch
from torch import nn

from meta_magic import MaterializeError, materialize, record
from tests.unit.eager import assert_bit_equal, build_twice


def build_model():
    model = nn.Sequential(nn.Linear(2, 3), nn.Dropout(), nn.BatchNorm1d(3))
    model.register_buffer("values", torch.tensor([1.0, 2.0]))
    model.register_buffer("read", torch.empty(2).copy_(torch.ones(2, device="cpu")))
    nn.init.trunc_normal_(model[0].weight, generator=torch.Generator().manual_seed(1))
    torch.rand(2, device="cpu")
    model(torch.rand(4, 2))
    return model


def traced(*, cache=True):
    return build_twice(build_model, cache=cache)[2]


def test_equal_runs_give_equal_traces_with_and_without_the_cache():
    assert traced(cache=True) == traced(cache=True) == traced(cache=False)


def test_roots_are_those_of_the_modules_in_their_order():
    with record() as trace:
        first, second = nn.Linear(2, 3), nn.Sequential(nn.ReLU())
    assert [root() for root in trace.roots] == [first, second]
    assert [node.class_name for node in trace.modules] == ["Linear", "Sequential"]


def test_roots_do_not_keep_modules_alive_and_dead_modules_have_none():
    def use():
        return nn.Linear(2, 3)(torch.ones(2)).shape

    with record() as trace:
        use()
        made = nn.Linear(2, 3)
    del made
    assert [root and root() for root in trace.roots] == [None, None]
    assert [root is None for root in trace.roots] == [True, False]


@pytest.mark.parametrize("cache", [True, False])
def test_two_equal_runs_give_equal_traces_also_with_nan_as_an_argument(cache):
    traces = []
    for _ in range(2):
        with record(cache=cache) as trace:
            torch.full((2,), float("nan"))
        traces.append(trace)
    assert traces[0].ops == traces[1].ops


def recorded_linear():
    with record():
        return nn.Linear(3, 3)


def test_a_recording_makes_no_difference_to_the_draws_of_one_around_it():
    def build():
        first = nn.Linear(2, 2)
        return nn.Sequential(first, recorded_linear(), nn.Linear(3, 3))

    real, made, _, _ = build_twice(
        lambda: nn.Sequential(nn.Linear(2, 2), nn.Linear(3, 3), nn.Linear(3, 3))
    )
    torch.manual_seed(0)
    with record():
        made = build()
    materialize(made)
    assert_bit_equal(made, real)


def test_a_nested_recording_is_refused_while_the_one_around_it_runs():
    with record():
        nn.Linear(2, 2)
        made = recorded_linear()
        with pytest.raises(MaterializeError, match="recording around this one"):
            materialize(made)


def test_a_nested_recording_records_its_own_part():
    with record() as outer:
        x = torch.ones(2)
        with record() as inner:
            y = x.sin()
        y.cos()
    assert [call.op for call in inner.ops] == ["aten.sin.default"]
    assert [call.op for call in outer.ops] == [
        "aten.ones.default", "aten.sin.default", "aten.cos.default",
    ]  # fmt: skip


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
def test_del_frees_at_once_inside_of_the_block_and_after_it(cache):
    with record(cache=cache):
        x, y = torch.randn(3), torch.randn(3)
        z = x.sin().view(3, 1)
        refs = [storage_ref(x), storage_ref(z), storage_ref(y)]
        del y
        assert refs.pop()() is None
    del x, z
    assert [ref() for ref in refs] == [None, None]


@pytest.mark.parametrize("cache", [True, False])
@pytest.mark.parametrize("function", [torch.tanh, torch.relu, torch.exp, torch.sqrt])
def test_a_graph_that_never_ran_backward_is_freed(function, cache):
    for _ in range(3):  # the third time all signatures are known
        y = record_forward(function, cache=cache)
        ref = storage_ref(y)
        del y
        gc.collect()
    assert ref() is None


def test_no_weak_reference_to_a_parameter_is_held_or_left():
    with record():
        model = nn.Linear(4, 2)
        model(torch.randn(3, 4)).sum().backward()
        within = [weakref.getweakrefcount(p) for p in model.parameters()]
    assert within == [weakref.getweakrefcount(p) for p in model.parameters()] == [0, 0]
    assert [weakref.getweakrefcount(p.grad) for p in model.parameters()] == [0, 0]


def test_no_table_of_hooks_is_longer_after_a_recording():
    there = vars(torch.nn.modules.module) | vars(import_module("torch.optim.optimizer"))
    tables = [
        n for n in there if n.startswith("_global_") and isinstance(there[n], dict)
    ]
    before = {name: len(there[name]) for name in tables}
    with record():
        nn.Linear(2, 2)(torch.ones(2))
    assert {"_global_forward_hooks", "_global_optimizer_post_hooks"} < {*tables}
    assert {name: len(there[name]) for name in tables} == before
