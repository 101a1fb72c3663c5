"""Limits of a recording, and shapes that modules return."""

import pytest
import torch
from torch import nn

import meta_magic
from meta_magic import record
from meta_magic.errors import BudgetError
from meta_magic.trace.expectations import (
    Limit,
    find_misshapen,
    find_overruns,
    matches_name,
    matches_shape,
    measure,
    parse_budget,
)


@pytest.fixture(scope="module")
def trace():
    with meta_magic.record(as_device="cpu") as recorded:
        model = nn.Linear(3, 4)
        model(torch.zeros(2, 3))
    return recorded


def test_a_budget_is_a_list_of_limits():
    assert parse_budget("params<7e9, peak_nbytes <= 80e9,flops<1e15") == (
        Limit(quantity="params", most=7e9, is_below=True),
        Limit(quantity="peak_nbytes", most=80e9),
        Limit(quantity="flops", most=1e15, is_below=True),
    )


@pytest.mark.parametrize(
    ("text", "most"),
    [
        ("params<7B", 7e9),
        ("peak_nbytes<80 GB", 80e9),
        ("peak_nbytes<80GiB", 80 * 2**30),
        ("flops<1.5p", 1.5e15),
        ("ops<12_000", 12_000),
        ("params<.5e3", 500),
    ],
)
def test_a_number_may_have_a_unit(text, most):
    assert parse_budget(text)[0].most == most


@pytest.mark.parametrize(
    "text",
    ["", "params", "params<", "params<x", "params>1", "params<1 parsec", "params<1,"],
)
def test_what_is_no_limit_is_refused_by_how_one_is_written(text):
    with pytest.raises(BudgetError, match="params<7e9"):
        parse_budget(text or " ")


def test_a_quantity_that_is_none_is_refused_by_those_that_are():
    with pytest.raises(
        BudgetError,
        match=r"'beauty' is no quantity of a budget; these are: params, .*flops, ops",
    ):
        parse_budget("beauty<3")


def test_a_recording_is_measured(trace):
    # A weight of 4 x 3 and a bias of 4; x of 2 x 3 and y of 2 x 4; float32.
    assert measure(trace) == {
        "params": 16,
        "param_nbytes": 64,
        "buffer_nbytes": 0,
        "peak_nbytes": 64 + 4 * (6 + 8),
        "flops": 2 * 2 * 3 * 4,
        "ops": len(trace.ops),
    }


def test_a_limit_that_is_kept_is_no_overrun(trace):
    assert find_overruns(trace, parse_budget("params<=16, flops<49")) == ()


def test_a_limit_to_stay_below_may_not_be_reached(trace):
    (overrun,) = find_overruns(trace, parse_budget("params<16"))
    assert overrun.value == 16


def test_an_overrun_says_what_is_and_what_may_be(trace):
    (overrun,) = find_overruns(trace, parse_budget("peak_nbytes<0.1KB"))
    text = "peak_nbytes is 120 bytes (120), and the budget is peak_nbytes < 100 bytes"
    assert str(overrun) == text


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
