"""Whether modules hold real tensors, also where they hold each other."""

import pytest
import torch
from torch import nn

from meta_magic.recording.intercept.real_tensors.capturable import find_on_meta, is_real


def circle_around(*modules):
    root, child = nn.Sequential(*modules), nn.Sequential()
    root.add_module("child", child)
    child.add_module("root", root)
    return root


def test_each_module_on_meta_is_found():
    layer = nn.Linear(2, 3, device="meta")
    root = circle_around(layer)
    assert {*find_on_meta(root)} == {root, layer, root.child}


def test_a_real_tensor_below_is_found():
    assert find_on_meta(circle_around(nn.Linear(2, 3))) is None


@pytest.mark.parametrize(
    ("modules", "expected"),
    [
        ([], None),
        ([nn.Linear(2, 3)], True),
        ([nn.ReLU(), nn.Linear(2, 3, device="meta"), nn.Linear(2, 3)], False),
    ],
)
def test_the_first_module_that_holds_tensors_decides(modules, expected):
    assert is_real(circle_around(*modules)) is expected


def test_modules_without_tensors_may_be_of_any_depth():
    root = module = nn.Module()
    for _ in range(3000):
        module.add_module("below", nn.Module())
        module = module.below
    module.weight = nn.Parameter(torch.ones(1))
    assert is_real(root) is True
