"""Names that a block binds have other values; what it does is otherwise the same."""

import ast

import pytest

from meta_magic.trials.blocks import set_sizes


def run(text, **sizes):
    variables = {}
    exec(compile(set_sizes(ast.parse(text), sizes), "<block>", "exec"), variables)
    return variables


@pytest.mark.parametrize(
    "text",
    [
        "B = 2\nx = [B]",
        "A = B = 2\nx = [B]",
        "B, T = 2, 3\nx = [B]",
        "[T, (B, *rest)] = 1, (2, 3)\nx = [B]",
        "B: int = 2\nx = [B]",
        "B = 1\nB += 1\nx = [B]",
        "if True:\n    B = 2\nx = [B]",
        "try:\n    1 / 0\nexcept ZeroDivisionError:\n    B = 2\nx = [B]",
        "match 1:\n    case 1:\n        B = 2\nx = [B]",
        "with open('/dev/null'):\n    B = 2\nx = [B]",
        "for B in [2]:\n    x = [B]",
        "for i, (B, T) in enumerate([(2, 3)]):\n    x = [B]",
    ],
)
def test_a_name_has_its_value_however_it_is_bound(text):
    assert run(text)["x"] == [2]
    assert run(text, B=7)["x"] == [7]


@pytest.mark.parametrize(
    "text",
    [
        "def f():\n    B = 2\n    return [B]\nx = f()",
        "class A:\n    B = 2\nx = [A.B]",
        "x = [B for B in [2]]",
        "f = lambda B: [B]\nx = f(2)",
        "class A: pass\na = A()\na.B = 2\nx = [a.B]",
    ],
)
def test_the_names_of_functions_and_classes_are_others(text):
    assert run(text, B=7)["x"] == [2]


def test_lines_stay_where_they_are():
    text = "B = 2\n\n\nx = 1 / 0"
    with pytest.raises(ZeroDivisionError) as error:
        run(text, B=7)
    assert error.traceback[-1].lineno == 3  # counted from 0
