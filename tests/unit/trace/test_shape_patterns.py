"""Shapes that modules are to return, by patterns of their names."""

import pytest
import torch
from torch import nn

from meta_magic import record
from meta_magic.trace.expectations import find_misshapen, matches_name, matches_shape


@pytest.mark.parametrize(
    ("pattern", "name", "matches"),
    [
        ("layers.*", "layers.0", True),
        ("layers.*", "layers.0.up", False),
        ("layers.**", "layers.0.up", True),
        ("**.up", "layers.0.up", True),
        ("*.up", "layers.0.up", False),
        ("", "", True),
        ("", "head", False),
        ("a.b", "a_b", False),
    ],
)
def test_a_star_stands_for_one_part_of_a_name_and_two_for_any(pattern, name, matches):
    assert matches_name(pattern, name) is matches


@pytest.mark.parametrize(
    ("expected", "shape", "matches"),
    [
        ((None, 128, 512), (4, 128, 512), True),
        ((None, 128, 512), (4, 64, 512), False),
        ((None, 128), (4, 128, 1), False),
        ((..., 512), (4, 128, 512), True),
        ((..., 512), (512,), True),
        ((4, ..., 512), (4, 512), True),
        ((4, ..., 512), (4,), False),
        ((...,), (), True),
        ((), (), True),
    ],
)
def test_none_stands_for_a_size_and_dots_for_any_number_of_them(
    expected, shape, matches
):
    assert matches_shape(expected, shape) is matches


def list_found(expected):
    """Return what is wrong with a model of two layers."""
    with record() as trace:
        model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 5))
        model(torch.zeros(2, 3))
    calls = {}
    for call in trace.module_calls:
        calls.setdefault(call.module, []).append(call)
    return [*find_misshapen(calls, expected)]


def test_shapes_that_are_as_expected_are_not_spoken_of():
    assert list_found({"0": (2, 4), "*": (2, None), "": (..., 5)}) == []


def test_a_module_of_another_shape_is_named_with_both():
    (found,) = list_found({"1": (None, 4)})
    assert found.startswith("1 (Linear) returned (2, 5)")
    assert found.endswith("not (any, 4)")


def test_a_pattern_of_no_module_is_wrong_and_names_those_that_are_near():
    (found,) = list_found({"layers.*": (2, 4)})
    assert "no module that was called is named 'layers.*'" in found
    assert "'0'" in found
