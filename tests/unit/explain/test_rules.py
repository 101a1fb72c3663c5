"""The rule that a call broke: what torch's documentation asks for."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from meta_magic import record
from meta_magic.explain.rules import IS_ACCEPTED


def explain(run):
    """Return what is said of a function that fails."""
    with pytest.raises(Exception), record() as trace:  # noqa: B017, PT011  torch's
        run()
    return trace.explanation


def test_features_must_be_those_of_the_weight():
    x, weight = torch.ones(4, 800), torch.ones(10, 400)
    rules = explain(lambda: F.linear(x, weight)).rules
    assert rules == ("dimension 1 of x (800) must equal dimension 1 of weight (400)",)


def test_sizes_that_are_added_must_be_equal_or_1():
    a, b = torch.ones(3, 4), torch.ones(3, 5)
    assert explain(lambda: a + b).rules == (
        "dimension 1 of a (4) must equal dimension 1 of b (5) or be 1",
    )


def test_sizes_beside_those_that_are_joined_must_be_equal():
    a, b = torch.ones(2, 3), torch.ones(2, 4)
    rules = explain(lambda: torch.cat([a, b])).rules
    assert rules[0] == "dimension 1 of a (3) must equal dimension 1 of b (4)"


def test_channels_must_be_those_of_the_weight():
    image, weight = torch.ones(1, 4, 16, 16), torch.ones(8, 3, 3, 3)
    rules = explain(lambda: F.conv2d(image, weight)).rules
    assert rules[0] == "dimension 1 of image (4) must equal dimension 1 of weight (3)"


def test_a_kernel_must_fit_into_the_image():
    image, weight = torch.ones(1, 3, 9, 2), torch.ones(8, 3, 3, 3)
    rules = explain(lambda: F.conv2d(image, weight)).rules
    assert (
        "dimension 3 of image (2) must be at least dimension 3 of weight (3)" in rules
    )


def test_groups_must_divide_the_channels():
    x = torch.ones(2, 10, 4)
    rules = explain(lambda: F.group_norm(x, 4)).rules
    assert "dimension 1 of x (10) must be a multiple of num_groups (4)" in rules


def test_the_dtype_that_is_asked_for_is_named():
    weight, indices = torch.ones(5, 3), torch.ones(4)
    rules = explain(lambda: F.embedding(indices, weight)).rules
    assert rules == ("indices is float32: indices.long() is accepted",)


def test_an_argument_has_the_name_that_torch_gives_it():
    x = torch.ones(2, 3)
    rules = explain(lambda: torch.softmax(x, dim=2)).rules
    assert rules == ("dim (2) must be from -2 to 1",)


def test_the_first_stands_for_several_sizes_that_must_be_equal():
    x, weight, bias = torch.ones(2, 7), torch.ones(5), torch.ones(5)
    rules = explain(lambda: F.layer_norm(x, (5,), weight, bias)).rules
    assert rules[0] == "dimension 1 of x (7) must equal dimension 0 of weight (5)"


def test_a_form_that_is_accepted_is_told_where_no_size_is():
    x = torch.ones(4, 2, 3)
    rules = explain(lambda: torch.linalg.inv(torch.ones(2, 2)) @ x[0].T).rules
    assert rules
    vector = torch.ones(3)
    rules = explain(lambda: torch.mm(vector, torch.ones(3, 2))).rules
    assert rules == (
        "vector has 1 dimension: 2 are accepted",
        "vector.unsqueeze(0) is accepted, and gives (1, 2)",
    )


def test_what_is_not_about_sizes_is_said_to_be_about_something_else():
    def write():
        leaf = torch.ones(3, requires_grad=True)
        leaf.expand(2, 3).add_(1)

    assert explain(write).rules == (IS_ACCEPTED,)


def test_what_the_cpu_alone_refuses_is_explained_as_well():
    model = nn.Linear(3, 2)
    x = torch.ones(4, 3, dtype=torch.float64)
    with pytest.raises(RuntimeError), record() as trace:
        nn.Linear(3, 2)(x)
    assert model.weight.dtype == torch.float32
    assert "x is float64: x.float() is accepted" in trace.explanation.rules


@pytest.mark.parametrize("function", [torch.lstm, torch.gru])
def test_what_would_end_the_process_ends_a_child(function):
    with pytest.raises((TypeError, RuntimeError)), record() as trace:
        function(torch.ones(2), torch.ones(3))
    assert trace.explanation.line is not None
