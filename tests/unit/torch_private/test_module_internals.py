"""A module tree is walked as torch does it, and also where torch never comes back."""

from itertools import islice

import torch
from torch import nn

import meta_magic as mm
from meta_magic.torch_private.module_internals import walk_modules


def build_circle():
    above, below = nn.Sequential(nn.Linear(2, 3)), nn.Sequential(nn.Linear(3, 2))
    above.add_module("below", below)
    below.add_module("above", above)
    return above


def test_a_module_at_two_places_is_walked_at_both_as_torch_does():
    shared = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    root = nn.ModuleDict({"a": shared, "b": nn.ModuleList([shared, None])})
    walked = [*root.named_modules(remove_duplicate=False)]
    assert [*walk_modules(root)] == walked


def test_a_module_within_itself_is_walked_once():
    names = [name for name, _ in islice(walk_modules(build_circle()), 9)]
    assert names == ["", "0", "below", "below.0"]


def test_modules_that_hold_each_other_are_recorded_and_made_real():
    def build():
        torch.manual_seed(0)
        return build_circle()

    class Root(nn.Module):
        def __init__(self):
            super().__init__()
            self.circle = build()

        def forward(self, x):
            return self.circle[0](x)

    with mm.record() as trace:
        made = Root()
        made(torch.ones(1, 2)).sum().backward()
    assert trace.modules[0].class_name == "Root"
    mm.materialize(made)
    wanted = [*build().parameters()]
    assert all(map(torch.equal, made.parameters(), wanted))
