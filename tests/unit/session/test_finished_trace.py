"""The trace that record() leaves: equal runs, pickles, living modules."""

import copy
import pickle

import pytest
import torch
from torch import nn

from meta_magic import UnfinishedTraceError, record
from tests.unit.eager import build_twice


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


def test_two_equal_runs_give_equal_traces():
    assert traced() == traced()


def test_runs_from_two_seeds_give_unequal_traces():
    assert build_twice(build_model, seed=1)[2] != build_twice(build_model, seed=2)[2]


def test_a_recording_is_the_same_with_and_without_the_cache():
    assert traced(cache=True) == traced(cache=False)


def test_a_trace_with_draws_and_constants_can_be_pickled():
    trace = traced()
    assert pickle.loads(pickle.dumps(trace)) == trace


def test_a_trace_that_goes_on_from_another_can_be_pickled():
    _, made, _, _ = build_twice(build_model)
    with record() as trace, torch.no_grad():
        made[0].weight.mul_(2)
    assert pickle.loads(pickle.dumps(trace)) == trace


def test_a_trace_with_a_large_constant_can_be_pickled():
    large = torch.arange(5_000_000.0)
    with record() as trace:
        torch.empty(5_000_000).copy_(large)
    assert pickle.loads(pickle.dumps(trace)) == trace


def test_a_pickled_trace_knows_no_living_modules():
    _, made, trace, _ = build_twice(build_model)
    assert trace.roots[0]() is made
    assert pickle.loads(pickle.dumps(trace)).roots == ()


def test_roots_are_those_of_the_modules_in_their_order():
    with record() as trace:
        first, second = nn.Linear(2, 3), nn.Sequential(nn.ReLU())
    assert [root() for root in trace.roots] == [first, second]
    assert [node.class_name for node in trace.modules] == ["Linear", "Sequential"]


def test_roots_do_not_keep_modules_alive():
    with record() as trace:
        made = nn.Linear(2, 3)
    del made
    assert [root() for root in trace.roots] == [None]


def test_a_module_that_was_gone_at_the_end_has_no_root():
    def use():
        return nn.Linear(2, 3)(torch.ones(2)).shape

    with record() as trace:
        use()
    assert [root for root in trace.roots if root is not None] == []
    assert len(trace.roots) == len(trace.modules)


def test_roots_are_unknown_before_the_end():
    with record() as trace, pytest.raises(UnfinishedTraceError):
        trace.roots


@pytest.mark.parametrize("cache", [True, False])
def test_two_equal_runs_give_equal_traces_also_with_nan_as_an_argument(cache):
    traces = []
    for _ in range(2):
        with record(cache=cache) as trace:
            torch.full((2,), float("nan"))
        traces.append(trace)
    assert traces[0].ops == traces[1].ops


def test_a_trace_can_be_copied():
    with record() as trace:
        torch.ones(2).sin()
    assert copy.deepcopy(trace) == trace
