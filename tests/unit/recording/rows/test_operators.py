"""What is recorded of an operator call."""

import torch
from torch import nn

from meta_magic import record


def ops_of(trace):
    return [call.op for call in trace.ops]


def test_a_linear_layer_is_a_transpose_and_an_addmm():
    with record() as trace:
        nn.Linear(3, 4)(torch.empty(2, 3))
    assert ops_of(trace)[-2:] == ["aten.t.default", "aten.addmm.default"]


def test_arguments_are_named_as_in_the_schema():
    with record() as trace:
        torch.ones(2, 3).sum(dim=1, keepdim=True)
    arguments = dict(trace.ops[-1].arguments)
    assert arguments["dim"] == (1,)
    assert arguments["keepdim"] is True
    assert arguments["self"] == trace.ops[-1].inputs[0]


def test_a_backward_operator_names_the_forward_operator_that_it_differentiates():
    with record() as trace:
        x = torch.ones(2, 3, requires_grad=True)
        y = x.exp()
        z = y.sum()
        z.backward()
    forward = {call.op: call.index for call in trace.ops if call.phase != "backward"}
    tied = {call.op: call.forward for call in trace.ops if call.phase == "backward"}
    assert tied["aten.expand.default"] == forward["aten.sum.default"]
    assert tied["aten.mul.Tensor"] == forward["aten.exp.default"]


def test_the_phases_of_a_training_step():
    with record() as trace:
        layer = nn.Linear(3, 4)
        optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
        loss = layer(torch.ones(2, 3)).sum()
        loss.backward()
        optimizer.step()
    phase = {call.op: call.phase for call in trace.ops}
    assert phase["aten.uniform_.default"] == "init"
    assert phase["aten.addmm.default"] == "forward"
    assert phase["aten.sum.default"] == "other"
    assert phase["aten.add_.Tensor"] == "optimizer"
