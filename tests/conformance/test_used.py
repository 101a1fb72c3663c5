"""A module that was trained is, as constructed, the one that the CPU builds."""

import copy

import pytest
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

import meta_magic as mm
from tests.conformance.exactness import differences, read_tensors, seed

pytest.importorskip("transformers")

from tests.conformance.architectures import USUAL, find_inputs, is_known, make_build

pytestmark = pytest.mark.filterwarnings("ignore")

N_STEPS = 2


def train(module: nn.Module, inputs: dict[str, object]) -> None:
    """Call a module in training mode, backward included, and step its parameters."""
    optimizer = torch.optim.AdamW(module.parameters(), lr=0.1)
    for _ in range(N_STEPS):
        leaves = tree_leaves(module.train()(**inputs))
        losses = [
            leaf.abs().sum()
            for leaf in leaves
            if isinstance(leaf, Tensor) and leaf.requires_grad
        ]
        torch.stack(losses).sum().backward()
        optimizer.step()
        optimizer.zero_grad()


@pytest.mark.parametrize("name", USUAL[::4])
def test_an_architecture_that_was_trained_is_as_the_cpu_builds_it(name):
    if not is_known(name):
        pytest.skip("the installed transformers has no such architecture")
    build = make_build(name)
    seed()
    direct, next_drawn = build(), torch.rand(4)
    inputs = find_inputs(copy.deepcopy(direct).eval())
    if inputs is None:
        pytest.skip("no simple input is known")
    seed()
    with mm.record(assume="routing=uniform"):
        module = build()
        train(module, inputs)
    mm.materialize(module, state="constructed")
    assert torch.equal(torch.rand(4), next_drawn)
    met, wanted = read_tensors(module), read_tensors(direct)
    # A call may leave tensors as attributes that the construction does not have.
    assert differences({name: met[name] for name in wanted}, wanted) == []
