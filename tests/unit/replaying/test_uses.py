"""Which calls of a recording use a module, and which construct it."""

import pytest
import torch
from torch import nn

from meta_magic import record
from meta_magic.replaying.program_calls import ProgramCalls
from meta_magic.replaying.uses import Uses


def phases_of(trace):
    """Return operator and use of each call."""
    uses = Uses(ProgramCalls(trace.program))
    return [(op.op.split(".")[1], uses.phase(op.index)) for op in trace.ops]


def test_a_construction_is_no_use():
    with record() as trace:
        nn.Linear(2, 3)
    assert {phase for _, phase in phases_of(trace)} == {None}


def test_calls_backward_passes_and_steps_are_uses():
    with record() as trace:
        model = nn.Linear(2, 3)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
    found = dict(phases_of(trace))
    assert found["addmm"] == "forward"
    assert found["mm"] == "backward"
    assert found["ones"] is None
    assert "optimizer" in found.values()


@pytest.mark.parametrize("is_frozen", [True, False])
def test_the_first_use_is_the_call_of_the_module_that_owns_the_storage(is_frozen):
    with record() as trace:
        model = nn.ModuleList([nn.Linear(2, 3), nn.Linear(2, 3)])
        model.requires_grad_(not is_frozen)
        model[1](torch.ones(1, 2))
    recorded = ProgramCalls(trace.program)
    weights = [
        n.storage_id
        for op in trace.ops
        for n in op.outputs
        if op.op == "aten.empty.memory_format"
    ]
    unused, used = weights[0], weights[2]
    first = Uses(recorded).find_first({unused, used})
    assert first.keys() == {used}
    assert first[used] == trace.module_calls[0].first_op
