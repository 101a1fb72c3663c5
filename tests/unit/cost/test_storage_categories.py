"""What a storage is for: by hand, for each kind."""

from itertools import product

import pytest
import torch
from torch import nn

from meta_magic import record
from meta_magic.cost import saved_storages
from meta_magic.cost.saved_storages import find_saved_slots


def count(trace, index=None):
    """Return the bytes of each category at a call; at the last one if None."""
    return dict(trace.memory.at(-1 if index is None else index).by_category)


def test_a_layer_that_was_trained():
    with record() as trace:
        layer = nn.Linear(10, 10)  # 110 elements
        x = torch.ones(5, 10)
        optimizer = torch.optim.Adam(layer.parameters())
        loss = layer(x).sum()
        loss.backward()
        optimizer.step()
    assert count(trace) == {
        "optimizer_state": 2 * 440 + 2 * 4,  # and a count of steps for each
        "parameter": 440,
        "gradient": 440,
        "input": 200,
        "output": 4,
    }


def test_what_is_saved_is_known_without_a_backward_pass():
    with record() as trace:
        loss = nn.Sequential(nn.Linear(10, 10), nn.ReLU())(torch.ones(5, 10)).sum()
    assert count(trace) == {"parameter": 440, "input": 200, "saved": 200, "output": 4}
    assert loss.ndim == 0


def test_of_a_product_with_a_frozen_weight_the_other_factor_is_not_saved():
    with record() as trace:
        first, second = nn.Linear(10, 10), nn.Linear(10, 10).requires_grad_(False)
        y = second(first(torch.ones(5, 10)))
    assert "saved" not in count(trace)
    assert y.ndim == 2


def test_buffers_are_known_of_a_module_that_is_gone():
    with record() as trace:
        nn.BatchNorm1d(10, affine=False)  # two of 40 bytes, and a count of 8
        layer = nn.BatchNorm1d(10, affine=False)
    index = next(i for i, n in enumerate(trace.memory.live_nbytes) if n == 88)
    assert count(trace, index)["buffer"] == 88
    assert layer.num_features == 10


@pytest.fixture(scope="module")
def addmm():
    with record() as trace:
        torch.addmm(torch.ones(4), torch.ones(2, 3), torch.ones(3, 4))
    return trace


@pytest.mark.parametrize("needed", [*product((False, True), repeat=3)])
def test_what_is_known_is_what_autograd_answers(addmm, monkeypatch, needed):
    (signature,) = [s for s in addmm.program.signatures if s.op == saved_storages.ADDMM]
    known = find_saved_slots(signature, needed)
    monkeypatch.setattr(saved_storages, "ADDMM", "")
    assert known == find_saved_slots(signature, needed)


def test_parameters_that_fully_shard_gathers_are_told_apart(shell):
    shell.run_cell("from torch.distributed.fsdp import fully_shard")
    shell.run_cell_magic(
        "meta",
        "--world 4 --as cuda",
        "torch.distributed.init_process_group()\n"
        "model = nn.Sequential(nn.Linear(64, 64, bias=False), nn.Linear(64, 64))\n"
        "for layer in model:\n"
        "    fully_shard(layer)\n"
        "fully_shard(model)\n"
        "model(torch.ones(8, 64)).sum().backward()",
    )
    memory = shell.user_ns["_meta"].memory
    weight, second = 64 * 64 * 4, (64 * 64 + 64) * 4
    held = memory.live_by_category
    # The first layer is whole when the second one is gathered: a buffer that all ranks
    # fill, and the parameters that are copied from it.
    assert max(held["unsharded"]) == weight + 2 * second
    assert held["unsharded"][-1] == 0
    assert held["parameter"][-1] == (weight + second) // 4
    # What was joined to be sent is there until the next step.
    assert held["gradient"][-1] == (weight + second) // 4 + weight
    assert max(held["input"]) == 8 * 64 * 4 + 2 * 16  # and twice the ranks of the mesh
