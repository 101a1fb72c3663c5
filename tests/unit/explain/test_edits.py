"""Edits that are proposed for a failed call, by family."""

import pytest
import torch

from meta_magic.explain.backward_errors import edit_refusals
from meta_magic.explain.edits.accepted import Accepted, Accepting
from meta_magic.explain.edits.argument_edits import edit_arguments, edit_modules
from meta_magic.explain.edits.number_edits import edit_numbers
from meta_magic.explain.edits.operand_edits import edit_intents, edit_operands
from tests.unit.explain.made_situations import make_situation, write_edits


def edit(family, text, line=1, **known):
    """Return the lines that a family's edits make of a program."""
    made = make_situation(text, line, **known)
    return write_edits(made, family(made))


# Calls


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
        ("nn.BatchNorm2d(8)", "nn.BatchNorm1d(8)"),
        ("nn.ConvTranspose2d(8, 4, 3)", "nn.ConvTranspose2d(4, 8, 3)"),
        ("x.sum(1, keepdim=True)", "x.sum(1, keepdim=False)"),
    ],
)
def test_a_call_gets_arguments_that_people_forget(text, written):
    assert any(line.endswith(written) for line in edit(edit_arguments, text))


@pytest.mark.parametrize(
    ("text", "never"),
    [
        ("nn.Conv2d(3, 8, 3)", "ConvTranspose2d"),
        ("nn.LSTM(4, 8, batch_first=True)", "batch_first=True, batch_first"),
        ("x.softmax(1)", "dim="),
        ("self.norm(x)", "keepdim"),
        ("DataLoader(data)", "drop_last"),
        ("torch.ones(3)", "dtype"),
    ],
)
def test_a_call_gets_no_argument_that_it_has_or_that_does_not_matter(text, never):
    assert not any(never in line for line in edit(edit_arguments, text))


@pytest.mark.parametrize(
    ("text", "error", "written"),
    [
        (
            "DataLoader(data)",
            "Expected more than 1 value per channel",
            "drop_last=True",
        ),
        ("torch.ones(3)", "expected scalar type Long but found Float", "torch.long"),
        ("torch.tensor([1.0])", "expected scalar type Long", "torch.long"),
    ],
)
def test_the_error_decides_whether_an_argument_matters(text, error, written):
    made = edit(edit_arguments, text, error=error)
    assert any(written in line for line in made)


def test_fractions_are_not_made_integers():
    made = edit(edit_arguments, "torch.tensor([1, 3.5])", error="expected Long")
    assert not any("torch.long" in line for line in made)


@pytest.mark.parametrize("call", ["Net(width, n)", "super().__init__(width, n, 1)"])
def test_arguments_are_exchanged_where_each_has_the_value_of_the_other(call):
    text = f"{call}\n\n\n\ny = x @ w"
    known = {"accepted": Accepted(numbers=((64, 23),))}
    turned = call.replace("width, n", "n, width")
    seen = {"width": [64], "n": [23]}
    assert turned in edit(edit_arguments, text, 5, seen=seen, **known)
    seen = {"width": [64], "n": [24]}
    assert turned not in edit(edit_arguments, text, 5, seen=seen, **known)


def test_far_from_the_failed_call_only_layers_get_arguments():
    made = edit(edit_arguments, "a\nb = x.transpose(0, 1)\nc = nn.GRU(3, 4)")
    assert "b = x" not in made
    assert "c = nn.GRU(3, 4, batch_first=True)" in made


# Modules

LOAD = "m.load_state_dict(states)"


@pytest.mark.parametrize(
    ("text", "error", "written"),
    [
        (
            LOAD,
            'Unexpected key(s): "state_dict"',
            'm.load_state_dict(states["state_dict"])',
        ),
        (
            LOAD,
            'Unexpected key(s): "module.fc.weight"',
            (
                'm.load_state_dict({k.removeprefix("module."): v '
                "for k, v in states.items()})"
            ),
        ),
        (
            LOAD,
            "size mismatch for fc.weight: copying a param",
            (
                "m.load_state_dict({k: v for k, v in states.items() "
                "if not k.startswith(('fc',))}, strict=False)"
            ),
        ),
        (
            "self.layers = [nn.Linear(3, 4)]",
            "ValueError: optimizer got an empty parameter list",
            "self.layers = nn.ModuleList([nn.Linear(3, 4)])",
        ),
        ("nn.MSELoss(x, y)", "bool value of Tensor", "nn.MSELoss()(x, y)"),
        (
            "net = nn.Sequential(nn.Conv2d(1, 8, 3), nn.Linear(72, 4))",
            "mat1 and mat2",
            "net = nn.Sequential(nn.Conv2d(1, 8, 3), nn.Flatten(), nn.Linear(72, 4))",
        ),
        (
            "self.layers = nn.ModuleList(made)",
            'Module [ModuleList] is missing the required "forward" function',
            "self.layers = nn.Sequential(*made)",
        ),
        (
            "self.layers = nn.ModuleList(f(n) for n in sizes)",
            'Module [ModuleList] is missing the required "forward" function',
            "self.layers = nn.Sequential(*(f(n) for n in sizes))",
        ),
        (
            "steps = Adam(net, lr=0.1)",
            "TypeError: optimizer can only optimize Tensors",
            "steps = Adam(net.parameters(), lr=0.1)",
        ),
        (
            "steps = Adam(net.parameters, lr=0.1)",
            "TypeError: 'method' object is not iterable",
            "steps = Adam(net.parameters(), lr=0.1)",
        ),
        (
            "y = predict(net, x)",
            "ValueError: Expected more than 1 value per channel when training",
            "y = predict(net.eval(), x)",
        ),
    ],
)
def test_modules_are_made_held_loaded_and_called_as_meant(text, error, written):
    assert written in edit(edit_modules, text, error=error)


def test_states_are_not_loaded_loosely_for_nothing():
    error = 'Missing key(s) in state_dict: "fc.weight"'
    assert not any("strict" in line for line in edit(edit_modules, LOAD, error=error))


# Tensors


@pytest.mark.parametrize(
    ("text", "error", "written"),
    [
        (
            "out, h, c = rnn(x)",
            "ValueError: not enough values to unpack (expected 3, got 2)",
            "out, (h, c) = rnn(x)",
        ),
        (
            "y = self.rnn(x)",
            "TypeError: linear(): argument 'input' must be Tensor, not tuple",
            "y = self.rnn(x)[0]",
        ),
    ],
)
def test_tensors_are_written_as_meant(text, error, written):
    assert written in edit(edit_intents, text, error=error)


@pytest.mark.parametrize(
    ("shape", "written"), [((5, 2), "edges.T"), ((5, 3, 2), "edges.unbind(2)")]
)
def test_columns_are_unpacked_where_there_are_as_many_as_names(shape, written):
    error = "ValueError: too many values to unpack (expected 2)"
    operands = [("edges", shape, torch.int64)]
    made = edit(edit_intents, "a, b = edges", operands=operands, error=error)
    assert made[0] == f"a, b = {written}"


def test_the_first_of_several_values_is_taken_where_python_refuses_them():
    operands = [("best[0]", (4,)), ("best[1]", (4,), torch.int64)]
    error = "TypeError: can't multiply sequence by non-int of type 'float'"
    text = "target = rewards + 0.9 * best"
    made = edit(edit_intents, text, operands=operands, error=error)
    assert made == ["target = rewards + 0.9 * best[0]"]


def test_class_numbers_that_are_too_large_are_shifted_or_ignored():
    operands = [("out", (4, 3)), ("y", (4,), torch.int64)]
    error = "IndexError: Target 3 is out of bounds."
    text = "loss = F.cross_entropy(out, y)"
    made = edit(edit_intents, text, operands=operands, error=error)
    assert "loss = F.cross_entropy(out, y - 1)" in made
    assert "loss = F.cross_entropy(out, y, ignore_index=-1)" in made


# Numbers


def edit_pairs(text, *numbers, line=1, seen=None):
    accepted = Accepted(numbers=numbers)
    return edit(edit_numbers, text, line, accepted=accepted, seen=seen)


def test_a_name_whose_value_was_the_accepted_number_is_used_in_its_function():
    text = "def f(width):\n    nn.Linear(400, 10); g(width)"
    made = edit_pairs(text, (400, 800), seen={"width": [800]})
    assert "nn.Linear(width, 10); g(width)" in made
    text = "def f(width):\n    g(width)\ndef h():\n    nn.Linear(400, 10)"
    made = edit_pairs(text, (400, 800), seen={"width": [800]})
    assert "nn.Linear(800, 10)" in made
    assert "nn.Linear(width, 10)" not in made


@pytest.mark.parametrize(
    ("right", "written"),
    [
        (128, "nn.Linear(2 * n, 10)"),
        (16, "nn.Linear(n // 4, 10)"),
        (65, "n + 1"),
        (63, "n - 1"),
    ],
)
def test_an_expression_is_scaled_where_it_can_be(right, written):
    made = edit_pairs("nn.Linear(n, 10)", (64, right), seen={"n": [64]})
    assert any(written in line for line in made)
    assert f"nn.Linear({right}, 10)" in made


def test_what_is_subtracted_is_left_out_where_that_is_the_difference():
    text, seen = "n = size - 1", {"size - 1": [11]}
    assert edit_pairs(text, (11, 12), seen=seen)[0] == "n = size"
    assert "n = size" not in edit_pairs(text, (11, 13), seen=seen)


@pytest.mark.parametrize(
    ("text", "pair", "written"),
    [
        ("x.reshape(-1, 16 * 5 * 5)", (400, 600), "x.reshape(-1, 24 * 5 * 5)"),
        ("conv(3, 32)\nhead(32)", (32, 64), "conv(3, 64)\nhead(64)"),
        ("f(32, 32)", (32, 24), "f(24, 24)"),
    ],
)
def test_factors_and_repeated_numbers_are_replaced(text, pair, written):
    assert written in edit_pairs(text, pair)


def test_a_dimension_and_a_signed_number_are_no_sizes():
    assert edit_pairs("x.softmax(dim=2); x.sum(2); f(-2)", (2, 5)) == []


def test_numbers_in_an_error_are_tried():
    error = "RuntimeError: Expected hidden size (2, 3, 8), got [1, 3, 8]"
    text = "torch.zeros(layers, 3, 8)"
    made = edit(edit_numbers, text, error=error, seen={"layers": [1]})
    assert "torch.zeros(2 * layers, 3, 8)" in made


def test_a_width_that_heads_must_divide_becomes_the_nearest_such_width():
    error = "ValueError: width 100 must be divisible by the number of heads, 12"
    made = edit(edit_numbers, "f(100, 12)", error=error)
    assert {"f(96, 12)", "f(108, 12)", "f(100, 10)", "f(100, 20)"} <= {*made}


# Operands


def change(text, *changes, names=("x",)):
    operands = [(name, (4, 3)) for name in names]
    accepted = Accepted(changes=changes)
    return edit(edit_operands, text, operands=operands, accepted=accepted)


def test_an_operand_is_changed_where_it_is_given():
    assert change("y = f(x)", Accepting(((0, "{}.long()"),))) == ["y = f(x.long())"]
    made = change('y = f(a["k"],b)', Accepting(((0, "{}.T"),)), names=["a['k']"])
    assert 'y = f(a["k"].T,b)' in made


def test_a_turned_operand_may_be_turned_back_in_the_result():
    made = change("y = norm(x)", Accepting(((0, "{}.transpose(1, 2)"),)))
    turned = "y = norm(x.transpose(1, 2))"
    assert made == [turned, f"{turned}.transpose(1, 2)"]


def test_all_but_the_other_operands_of_a_formula_are_changed():
    accepting = Accepting(((1, "{}[..., None]"),))
    made = change("y = (x - mean) / std", accepting, names=["x", "mean"])
    assert "y = (x - mean[..., None]) / std[..., None]" in made


def test_what_is_unpacked_together_gets_one_dtype():
    accepted = Accepted(changes=(Accepting(((0, "{}.long()"),)),))
    made = edit(
        edit_operands,
        "u, i = x[:, 0], x[:, 1]",
        operands=[("x[:, 0]", (4,))],
        error="expected Long",
        accepted=accepted,
    )
    assert "u, i = x[:, 0].long(), x[:, 1].long()" in made


def test_the_factors_of_a_product_are_turned_together():
    accepting = Accepting(((1, "{}.T"),))
    made = change("y = x @ self.a @ self.b", accepting, names=["x", "self.a"])
    assert "y = x @ self.a.T @ self.b.T" in made


def test_two_operands_are_changed_together():
    accepting = Accepting(((0, "{}.T"), (1, "{}.T")))
    assert change("y = a @ b", accepting, names="ab") == ["y = a.T @ b.T"]


def test_a_result_larger_than_all_operands_comes_last():
    small = Accepting(((0, "{}.flatten()"),))
    large = Accepting(((0, "{}.long()"),), is_as_large=False)
    made = change("y = f(x)", large, small)
    assert made == ["y = f(x.flatten())", "y = f(x.long())"]


# Autograd


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("a = x.numpy()", "a = x.detach().numpy()"),
        ("w -= 0.1 * w.grad", "with torch.no_grad(): w -= 0.1 * w.grad"),
        ("w[0] = 1", "with torch.no_grad(): w[0] = 1"),
        ("w.mul_(2)", "w.data.mul_(2)"),
        ("loss.backward()", "loss.mean().backward()"),
        ("nn.Parameter(x)", "nn.Parameter(x, requires_grad=False)"),
    ],
)
def test_what_autograd_refuses_is_done_without_it(text, written):
    error = "RuntimeError: a leaf Variable that requires grad is being used"
    assert written in edit(edit_refusals, text, error=error)


def test_other_errors_change_nothing_about_autograd():
    assert edit(edit_refusals, "a = x.numpy()", error="TypeError: can't convert") == []
