"""What is recorded of the calls of modules."""

import pytest
import torch
from torch import nn

from meta_magic import record
from tests.unit.modules import Tied


def test_a_module_called_twice_has_two_calls():
    with record() as trace:
        layer = nn.Linear(3, 3)
        layer(layer(torch.ones(1, 3)))
    assert len(trace.module_calls) == 2
    assert (trace.modules[0].n_calls, trace.modules[0].first_call) == (2, 0)
    calls = [c.module_call for c in trace.ops if c.op == "aten.addmm.default"]
    assert calls == [0, 1]


def test_keyword_arguments_and_nested_outputs_are_recorded():
    with record() as trace:
        model = Tied()
        model(torch.zeros(2, 5, dtype=torch.long), scale=torch.ones(1))
    call = trace.module_calls[0]
    assert [(path, t.shape) for path, t in call.inputs] == [
        ("0", (2, 5)),
        ("scale", (1,)),
    ]
    assert [(path, t.shape) for path, t in call.outputs] == [
        ("logits", (2, 5, 10)),
        ("extra.0", (1,)),
    ]


class Keyed(nn.Module):
    def forward(self, given):
        return {("b",): ("tag", given[0, 1]), "names": ("x", "y"), 7: [given[0, 1]]}


def test_tensors_in_a_dict_have_paths_whatever_its_keys_are():
    with record() as trace:
        Keyed()({(0, 1): torch.ones(2), "n": ("p", "q")})
    (call,) = trace.module_calls
    assert [path for path, _ in call.inputs] == ["0.(0, 1)"]
    assert [path for path, _ in call.outputs] == ["('b',).1", "7.0"]


def test_a_call_that_raises_has_an_end_and_no_outputs():
    with pytest.raises(RuntimeError), record() as trace:
        nn.Linear(3, 4)(torch.ones(2, 5))
    (call,) = trace.module_calls
    assert call.outputs == ()
    assert call.end_op >= call.first_op
