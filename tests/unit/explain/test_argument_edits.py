"""What calls are told otherwise, and what is called in their place."""

import pytest

from meta_magic.explain.edits.argument_edits import edit_arguments
from tests.unit.explain.made_situations import make_situation, write_edits

BLOCK = """\
def block(cin, cout, stride=1):
    return nn.Conv2d(cin, cout, 1)
"""


def edit(text, line=1, error="RuntimeError"):
    made = make_situation(text, line, error=error)
    return write_edits(made, edit_arguments(made))


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("nn.LSTM(4, 8)", "nn.LSTM(4, 8, batch_first=True)"),
        ("nn.Conv2d(3, 8, 3)", "nn.Conv2d(3, 8, 3, padding=1)"),
        ("nn.MaxPool2d(2)", "nn.MaxPool2d(2, ceil_mode=True)"),
        ("nn.ConvTranspose2d(8, 4, 3, 2)", "3, 2, output_padding=1)"),
        ("x.mean(1)", "x.mean(1, keepdim=True)"),
        ("torch.flatten(x)", "torch.flatten(x, 1)"),
        ("x.flatten()", "x.flatten(1)"),
        ("torch.cat([a, b])", "torch.cat([a, b], dim=1)"),
        ("torch.cat(losses)", "torch.stack(losses)"),
        ("x.view(4, -1)", "x.reshape(4, -1)"),
        ("x.view(4, 300)", "x.view(4, -1)"),
        ("x.view(shape)", "x.view(*shape[:-1], -1)"),
        ("x.softmax(1)", "x.softmax(0)"),
        ("f(x.t())", "f(x)"),
        ("f(x.T)", "f(x)"),
        ("nn.BatchNorm2d(8)", "nn.BatchNorm1d(8)"),
        ("nn.ConvTranspose2d(8, 4, 3)", "nn.ConvTranspose2d(4, 8, 3)"),
        ("y = a * b", "y = a @ b"),
        ("y = a @ b", "y = b @ a"),
        ("x.sum(1, keepdim=True)", "x.sum(1, keepdim=False)"),
    ],
)
def test_a_call_is_told_what_people_forget(text, written):
    assert any(line.endswith(written) for line in edit(text))


@pytest.mark.parametrize(
    ("text", "never"),
    [
        ("nn.Conv2d(3, 8, 3)", "ConvTranspose2d"),
        ("nn.LSTM(4, 8, batch_first=True)", "batch_first=True, batch_first"),
        ("x.softmax(1)", "dim="),
        ("self.norm(x)", "keepdim"),
        ("y = 2 * x", "@"),
        ("DataLoader(data)", "drop_last"),
        ("torch.ones(3)", "dtype"),
    ],
)
def test_a_call_is_not_told_what_it_knows_or_what_does_not_matter(text, never):
    assert not any(never in line for line in edit(text))


def test_what_an_error_speaks_of_matters():
    one = "ValueError: Expected more than 1 value per channel when training"
    assert "DataLoader(data, drop_last=True)" in edit("DataLoader(data)", error=one)
    kind = "RuntimeError: expected scalar type Long but found Float"
    assert "torch.ones(3, dtype=torch.long)" in edit("torch.ones(3)", error=kind)


def test_what_a_function_was_told_is_passed_on():
    assert edit(BLOCK)[0] == "return nn.Conv2d(cin, cout, 1, stride=stride)"


def test_far_from_the_failed_call_only_layers_are_told_otherwise():
    made = edit("a\nb = x.transpose(0, 1)\nc = nn.GRU(3, 4)", 1)
    assert "b = x" not in made
    assert "c = nn.GRU(3, 4, batch_first=True)" in made
