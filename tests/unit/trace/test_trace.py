"""The trace as a record: equality, pickling, tables, slices, promises."""

import pickle

import pytest
import torch
from torch import nn

from meta_magic import record


def make_trace(**options):
    torch.manual_seed(0)
    with record(**options) as trace:
        model = nn.Sequential(nn.Linear(3, 4), nn.ReLU())
        loss = model(torch.ones(2, 3)).sum()
        loss.backward()
    return trace


def test_a_trace_survives_pickling():
    trace = make_trace()
    list(trace.ops)
    again = pickle.loads(pickle.dumps(trace))
    assert again == trace
    assert list(again.ops) == list(trace.ops)
    assert str(again) == str(trace)


def test_operators_can_be_indexed_from_both_ends_and_sliced():
    ops = make_trace().ops
    assert ops[-1] == ops[len(ops) - 1]
    assert ops[1:3] == (ops[1], ops[2])
    with pytest.raises(IndexError, match="index 999 is outside"):
        ops[999]


def test_an_unknown_attribute_is_named():
    with pytest.raises(AttributeError, match="no attribute 'opps'"):
        _ = make_trace().opps


def test_a_storage_that_dies_is_noted_when_it_does():
    with record() as trace:
        x = torch.ones(3)
        del x
        torch.ones(4)
    deaths = memoryview(trace.program.deaths).cast("I").tolist()
    assert deaths[:2] == [1, trace.ops[0].outputs[0].storage_id]
