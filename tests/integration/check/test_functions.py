"""``meta-magic check`` of functions."""

MODELS = """\
import torch


def step(width):
    return torch.nn.Linear(width, 4)(torch.zeros(2, width))
"""


def test_a_function_of_a_module_is_called(check):
    code, text = check("models:step", "--args", "[3]", models=MODELS)
    assert code == 0
    assert "16 parameters" in text  # 3 x 4 weights and 4 biases


def test_what_cannot_be_called_is_refused_with_the_reason(check):
    code, text = check("models:step", models=MODELS)
    assert code == 2
    assert "missing a required argument: 'width'" in text
