"""Numbers that are written otherwise, where another one is accepted."""

import pytest
import torch

from meta_magic.explain.edits.accepted import Accepted
from meta_magic.explain.edits.number_edits import edit_numbers
from tests.unit.explain.made_situations import make_situation, write_edits


def edit(
    text, *numbers, seen=None, error="RuntimeError", operands=(), is_of_values=False
):
    accepted = Accepted(numbers=numbers, is_of_values=is_of_values)
    made = make_situation(
        text, error=error, operands=operands, accepted=accepted, seen=seen
    )
    return write_edits(made, edit_numbers(made))


def test_a_number_is_written_as_the_other_one():
    assert edit("nn.Linear(400, 10)", (400, 800))[0] == "nn.Linear(800, 10)"


def test_a_name_that_stood_for_the_right_number_is_used():
    text = "def f(width):\n    nn.Linear(400, 10); g(width)"
    made = edit(text, (400, 800), seen={"width": [800]})
    assert "nn.Linear(width, 10); g(width)" in made


def test_a_name_of_another_function_is_not():
    text = "def f(width):\n    g(width)\ndef h():\n    nn.Linear(400, 10)"
    made = edit(text, (400, 800), seen={"width": [800]})
    assert "nn.Linear(800, 10)" in made
    assert "nn.Linear(width, 10)" not in made


@pytest.mark.parametrize(
    ("right", "written"),
    [(128, "nn.Linear(2 * n, 10)"), (16, "nn.Linear(n // 4, 10)"), (65, "n + 1")],
)
def test_an_expression_is_scaled_where_it_can_be(right, written):
    made = edit("nn.Linear(n, 10)", (64, right), seen={"n": [64]})
    assert any(written in line for line in made)
    assert f"nn.Linear({right}, 10)" in made


def test_one_factor_of_a_product_is_replaced():
    made = edit("x.reshape(-1, 16 * 5 * 5)", (400, 600))
    assert "x.reshape(-1, 24 * 5 * 5)" in made


def test_a_number_that_is_written_twice_is_replaced_twice():
    text = "conv(3, 32)\nhead(32)"
    assert "conv(3, 64)\nhead(64)" in edit(text, (32, 64))
    assert "f(24, 24)" in edit("f(32, 32)", (32, 24))


def test_a_number_of_data_is_the_last_to_be_replaced():
    made = edit("torch.ones(4, 400); nn.Linear(400, 10)", (400, 800))
    layer, data = "torch.ones(4, 400); nn.Linear(800, 10)", "torch.ones(4, 800)"
    assert made.index(layer) < made.index(f"{data}; nn.Linear(400, 10)")


def test_a_dimension_and_what_has_a_sign_are_no_sizes():
    made = edit("x.softmax(dim=2); x.sum(2); f(-2)", (2, 5))
    assert made == []


def test_numbers_that_an_error_tells_are_tried():
    error = "RuntimeError: Expected hidden size (2, 3, 8), got [1, 3, 8]"
    made = edit("torch.zeros(layers, 3, 8)", error=error, seen={"layers": [1]})
    assert "torch.zeros(2 * layers, 3, 8)" in made


def test_a_table_gets_as_many_rows_as_numbers_need():
    operands = [("pos", (1, 128), torch.int64), ("w", (100, 16))]
    error = "IndexError: index out of range in self"
    text = "nn.Embedding(100, 16)"
    made = edit(text, error=error, operands=operands, is_of_values=True)
    assert {"nn.Embedding(101, 16)", "nn.Embedding(128, 16)"} <= {*made}


def test_what_is_given_to_ones_own_class_may_be_scaled():
    text = "class Net: pass\nnet = Net(512, grid=16)\nnet(x)"
    made = make_situation(text, 3, accepted=Accepted(numbers=((32, 64),)))
    assert "net = Net(512, grid=32)" in write_edits(made, edit_numbers(made))
