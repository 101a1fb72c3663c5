import pytest
import torch
from torch import nn

import meta_magic
from meta_magic.errors import BudgetError
from meta_magic.trace.expectations import Limit, find_overruns, measure, parse_budget


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
