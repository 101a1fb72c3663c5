"""What optimizers, modules and autograd say of storages, however odd they are."""

import torch
from torch import nn
from torch.optim.optimizer import _global_optimizer_post_hooks

from meta_magic.session.record import record


def test_states_in_lists_and_states_that_are_no_dictionaries_are_states():
    class Odd(torch.optim.Optimizer):
        def step(self):
            for group in self.param_groups:
                for p in group["params"]:
                    self.state["all"] = torch.ones(2)
                    self.state[p] = {"past": [torch.ones(3)], "n": 1, "name": "odd"}

    with record() as trace:
        layer = nn.Linear(2, 2, bias=False)
        optimizer = Odd(layer.parameters(), {})
        optimizer.step()
    assert trace.memory.at(-1).by_category["optimizer_state"] == 8 + 12


def test_a_lazy_buffer_is_registered_as_ever():
    with record() as trace:
        layer = nn.LazyBatchNorm1d(affine=False)
        layer(torch.ones(4, 3))
    assert trace.memory.at(-1).by_category["buffer"] == 12 + 12 + 8


def test_no_hook_of_a_recording_stays():
    before = len(_global_optimizer_post_hooks)
    with record():
        torch.ones(1)
    assert len(_global_optimizer_post_hooks) == before


def test_a_gradient_is_noted_with_the_tensor_that_it_is_of():
    with record() as trace:
        x = torch.ones(3, requires_grad=True)
        (x * 2).sum().backward()
    ((call, storage),) = trace.program.facts.accumulated
    assert trace.ops[call].op == "aten.detach.default"
    assert storage == trace.ops[0].outputs[0].storage_id
