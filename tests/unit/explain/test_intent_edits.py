"""What was meant of tensors."""

import pytest
import torch

from meta_magic.explain.edits.operand_edits import edit_intents
from tests.unit.explain.made_situations import make_situation, write_edits


def edit(text, operands=(), error="RuntimeError"):
    made = make_situation(text, operands=operands, error=error)
    return write_edits(made, edit_intents(made))


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("y = x[-1]", "y = x[-1:]"),
        ("y = x[0]", "y = x[:1]"),
        ("y = x[:, 0]", "y = x[:, :1]"),
        ("y = x[2]", "y = x"),
        ("n = a // b - 1", "n = a // b"),
        ("y = x.view(16, 72)", "y = x.view(x.shape[0], 72)"),
        ("x = torch.ones(1, 3, 61, 61)", "x = torch.ones(1, 3, 64, 64)"),
        (
            "y = F.pad(x, (0, 9), mode='reflect')",
            'y = F.pad(x, (0, 9), mode="replicate")',
        ),
    ],
)
def test_what_is_meant_is_written(text, written):
    assert written in edit(text)


def test_the_first_or_last_of_a_tensor_is_left_out():
    made = edit("loss = f(out, target)", [("out", (4, 5)), ("target", (4, 6))])
    assert "loss = f(out, target[:, 1:])" in made
    assert "loss = f[:, 1:](out, target)" not in made


def test_values_are_taken_apart_as_they_are_returned():
    error = "ValueError: not enough values to unpack (expected 3, got 2)"
    assert "out, (h, c) = rnn(x)" in edit("out, h, c = rnn(x)", error=error)


def test_the_first_of_several_is_taken():
    error = "TypeError: linear(): argument 'input' must be Tensor, not tuple"
    assert "y = self.rnn(x)[0]" in edit("y = self.rnn(x)", error=error)


def test_class_numbers_that_are_too_large_are_shifted_or_ignored():
    error = "IndexError: Target 3 is out of bounds."
    operands = [("out", (4, 3)), ("y", (4,), torch.int64)]
    made = edit("loss = F.cross_entropy(out, y)", operands, error)
    assert "loss = F.cross_entropy(out, y - 1)" in made
    assert "loss = F.cross_entropy(out, y, ignore_index=-1)" in made
