"""Which calls of a recording use a module, and which construct it."""

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations

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


def test_a_call_within_a_construction_is_no_use():
    class Probing(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = nn.Sequential(nn.Linear(2, 3))
            self.size = self.body(torch.ones(1, 2)).shape

        def forward(self, x):
            return self.body(x)

    with record() as trace:
        model = Probing()
        model(torch.ones(1, 2))
    products = [phase for op, phase in phases_of(trace) if op == "addmm"]
    assert products == [None, "forward"]


def test_reading_a_parametrized_weight_is_no_use():
    with record() as trace:
        model = parametrizations.weight_norm(nn.Linear(2, 3))
        model.weight.sum()
        model(torch.ones(1, 2))
    norms = [phase for op, phase in phases_of(trace) if "weight_norm" in op]
    assert norms[-1] == "forward"
    assert set(norms[:-1]) == {None}


def test_the_first_call_initializes_a_lazy_module_and_then_uses_it():
    with record() as trace:
        nn.LazyLinear(3)(torch.ones(1, 2))
    found = phases_of(trace)
    assert found[-1] == ("addmm", "forward")
    assert {phase for op, phase in found if op == "uniform_"} == {None}


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


def test_a_call_of_a_module_uses_all_its_parameters():
    class Half(nn.ModuleList):
        def forward(self, x):
            return self[0](x)

    with record() as trace:
        model = Half([nn.Linear(2, 3), nn.Linear(2, 3)])
        model(torch.ones(1, 2))
    made = [
        n.storage_id
        for op in trace.ops
        for n in op.outputs
        if op.op == "aten.empty.memory_format"
    ]
    first = Uses(ProgramCalls(trace.program)).find_first(made)
    assert set(first.values()) == {trace.module_calls[0].first_op}
    assert first.keys() == {*made}


def test_only_calls_with_a_wanted_storage_are_examined():
    with record() as trace:
        unused = nn.Linear(2, 3)
        model = nn.Linear(2, 3)
        for _ in range(5):
            model(torch.ones(1, 2))
    recorded, looked_at = ProgramCalls(trace.program), []

    class Watched(Uses):
        def phase(self, index):
            looked_at.append(index)
            return super().phase(index)

    numbers = {n for tree in trace.modules for n in tree.storages}
    first = Watched(recorded).find_first(numbers)
    products = [call.index for call in trace.ops if call.op == "aten.addmm.default"]
    assert len(first) == 2
    assert max(looked_at) == products[0]
    assert unused.weight.is_meta
