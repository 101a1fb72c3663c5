"""Causes of wrong answers: each kind of change, found in the answer or the solution."""

import pytest
import torch

from meta_magic.teach.answer_runs import Exercise
from meta_magic.teach.causes import (
    compare_growth,
    describe_values,
    find_change,
    find_reads,
)

SQUARE = "x = torch.arange(16.).view(4, 4) ** 2"
PAIR = "a, b = torch.arange(6.).view(2, 3), torch.arange(6.).view(3, 2) ** 2"


def define(given, solution, sizes=()):
    return Exercise("one", given, f"y = {solution}", ("y",), sizes)


@pytest.mark.parametrize(
    ("given", "solution", "answer", "cause"),
    [
        (SQUARE, "x.sum(0)", "x.mean(0)", "mean is called, and sum is wanted"),
        (SQUARE, "x.sum(0)", "x.sum(1)", "sum is along dimension 1, and another"),
        (SQUARE, "x.sum(dim=0)", "x.sum(dim=1)", "sum is along dimension 1, and"),
        (SQUARE, "x.triu(1)", "x.triu(0)", "triu is called with 0, and another number"),
        (SQUARE, "x.sum(0, keepdim=True)", "x.sum(0)", "sum drops its dimension"),
        (SQUARE, "x.sum(0)", "x.sum(0, keepdim=True)", "sum keeps its dimension"),
        (SQUARE, "x.softmax(0)", "x", "softmax is missing"),
        (SQUARE, "x - 1.", "(x - 1.).softmax(0)", "softmax is one step too much"),
        (SQUARE, "x[:, 1]", "x[:, 2]", "another position"),
        (SQUARE, "x[1:3]", "x[1:4]", "a slice ends off by one"),
        (SQUARE, "x[::2]", "x[::3]", "a slice has another step"),
        (SQUARE, "x[:, 2]", "x.mean(1)", "the mean of dimension 1 is taken, and one"),
        (SQUARE, "x.max(1)[1]", "x.max(1)[0]", "another one of the results of max"),
        (
            SQUARE,
            "(x ** 2).sum(0)",
            "x.sum(0) ** 2",
            "sum is before pow, and is wanted",
        ),
        (
            SQUARE,
            "x.masked_fill(x > 9, 0.)",
            "x.masked_fill(x < 9.5, 0.)",
            "lt is called, and gt is wanted",
        ),
        (
            SQUARE,
            "x.masked_fill(x.bool(), 3.)",
            "x.masked_fill(~x.bool(), 3.)",
            "the mask of masked_fill is inverted",
        ),
        (
            SQUARE,
            "x.masked_fill(torch.ones(4, 4).triu(1).bool(), -torch.inf)",
            "x.tril()",
            "the numbers are as if masked_fill is called with 0",
        ),
        (SQUARE, "x - x[0]", "(x - x[0]) / x.std()", "div is one step too much"),
        (SQUARE, "x[None].mT", "x[None].transpose(0, 1)", "is along dimension 0"),
        (SQUARE, "x[:, 1]", "x[1]", "dimensions 0 and 1 of an index are exchanged"),
        (PAIR, "a @ b", "b @ a", "the operands of matmul are exchanged"),
        (PAIR, "a - b.T", "b.T - a", "the operands of sub are exchanged"),
        (PAIR, "a.T", "a.view(3, 2)", "a view keeps the order of elements"),
        (PAIR, "a.view(3, 2)", "a.T", "T exchanges dimensions, and a view is wanted"),
        (PAIR, "a.T.reshape(6)", "a.reshape(6)", "exchanged before reshape"),
    ],
)
def test_the_call_that_is_another_one_is_named(given, solution, answer, cause):
    assert cause in find_change(define(given, solution), f"y = {answer}", {}, "y")


def test_a_change_that_is_right_at_one_size_alone_is_no_cause():
    # With N = 2 the mean times two is the sum, with N = 3 it is not.
    made = define("N = 2\nx = torch.arange(4. * N).view(N, 4)", "x.sum(0)", [{"N": 3}])
    assert find_change(made, "y = x.mean(0) * 3", {}, "y") == ""
    assert "sum" in find_change(made, "y = x.mean(0)", {}, "y")


def test_what_an_element_is_computed_from_is_said():
    made = define(SQUARE, "x.cumsum(0)")
    said = find_reads(made, "y = x.cumsum(1)", {}, "y")
    assert said == "y[3, 3] is computed from x[3, :], instead of x[:, 3]"
    assert find_reads(made, "y = x.cumsum(0) * 2", {}, "y") == ""


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ("A * B / 2", "it is always 0.5 times what is wanted"),
        ("A * B - 1", "it is always -1 off"),
        ("A * 3", "it does not change with B"),
        # With 3 more for A it grows by 3 * 3, and B * 3 * 1 = 9 is right.
        ("A * B + B", "it grows by 15 with 3 more for B, and 12 is wanted"),
    ],
)
def test_what_a_number_depends_on_is_said(answer, said):
    # A = 4, B = 3: 3 more for B are 12 more.
    made = define("A, B = 4, 3", "A * B")
    assert compare_growth(made, f"y = {answer}", {}, "y") == said


X = torch.arange(1.0, 7.0).view(2, 3).double() ** 2


@pytest.mark.parametrize(
    ("mine", "said"),
    [
        (X, ""),
        (-X, "the right ones with the other sign"),
        (X * 2, "2 times what is wanted"),
        (X + 1, "each is +1 off"),
        (X.sqrt(), "the square roots of the right ones"),
        (X.log(), "the logarithms of the right ones"),
        (X.flip(1), "the right ones, backwards along dimension 1"),
        (X.roll(1, 1), "the right ones, shifted by one along dimension 1"),
        (X.T.reshape(2, 3), "the same ones in another order"),
        (X.masked_fill(X > 9, 0), "3 are 0, and should not be"),
        (X * torch.nan, "6 are nan, and should not be"),
        (X * torch.tensor([1.0, 2.0, 4.0]), "4 of 6 are wrong; the first, at [0, 1]"),
    ],
)
def test_how_numbers_are_wrong_is_said(mine, said):
    assert describe_values(mine, X).startswith(said)
    assert bool(describe_values(mine, X)) == bool(said)


def test_a_square_that_is_transposed_names_its_dimensions():
    square = torch.arange(9.0).view(3, 3) ** 2
    said = describe_values(square.T, square)
    assert said == "its dimensions 0 and 1 are exchanged"


def test_a_mask_that_is_missing_or_inverted_is_said():
    mine = torch.arange(1.0, 10.0).view(3, 3)
    right = mine.masked_fill(torch.eye(3).bool(), -torch.inf)
    assert describe_values(mine, right) == "3 should be -inf, and are not"
    inverted = mine.masked_fill(~torch.eye(3).bool(), -torch.inf)
    assert describe_values(inverted, right).endswith("a mask is inverted")
    zeros = mine.masked_fill(~torch.eye(3).bool(), -0.0)
    said = "0 stands where it should not: a mask is inverted, and -inf is wanted"
    assert describe_values(zeros, right) == said
    assert describe_values(mine[0, 1], right[1, 1]) == "2 for -inf"
