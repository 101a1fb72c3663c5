"""Functions and their arguments, called here."""

import pytest

from meta_magic.check.block_run import run_function
from meta_magic.check.records import read_subject
from meta_magic.errors import CheckError

MODELS = """\
import torch

WIDTH = 3


def double(x, times=2):
    return x * times


def step():
    return torch.nn.Linear(WIDTH, 4)(torch.zeros(2, WIDTH))


def build():
    return torch.nn.Linear(WIDTH, 4)


def make():
    return (torch.zeros(5, 6),), {"times": 3}


def make_words():
    return {"x": torch.zeros(5, 6)}


def make_one():
    return torch.zeros(5, 6)
"""


@pytest.fixture
def call(ask):
    def call(name, models=MODELS, **options):
        files = {"own_models": models}
        ask(None, files=files)
        subject = read_subject(name)
        (part,) = run_function(ask(subject, files=files, **options))
        return part

    return call


def test_a_function_of_a_module_is_called(call):
    part = call("own_models:step")
    # 3 x 4 weights and 4 biases; 2 x 4 products of 3 multiply-adds.
    assert part.measured["params"] == 16
    assert part.measured["flops"] == 2 * 2 * 4 * 3


def test_a_model_that_a_function_returns_is_described(call):
    assert call("own_models.py:build").modules["result"]["class"] == "Linear"


@pytest.mark.parametrize(
    "options",
    [
        {"arguments": '[{"shape": [5, 6], "dtype": "float16"}]'},
        {"arguments": '{"x": {"shape": [5, 6]}, "times": 3}'},
        {"factory": "own_models:make"},
        {"factory": "own_models.py:make_words"},
        {"factory": "own_models:make_one"},
    ],
)
def test_arguments_are_json_or_a_factorys(call, options):
    part = call("own_models.py:double", **options)
    assert (part.outcome, part.measured["ops"]) == ("right", 2)


@pytest.mark.parametrize(
    ("name", "options", "reason"),
    [
        ("own_models:nothing", {}, "'own_models' has no function 'nothing'"),
        ("own_models:WIDTH", {}, "own_models:WIDTH is no function"),
        ("own_models:double", {}, "missing a required argument: 'x'"),
        (
            "own_models:double",
            {"arguments": '[{"shape": [2], "dtype": "float3"}]'},
            "torch has no dtype 'float3'",
        ),
        ("own_models:double", {"factory": "own_models:no"}, "no function 'no'"),
        ("own_models:double", {"factory": "no"}, "a function is named as"),
    ],
)
def test_what_cannot_be_called_is_refused_with_the_reason(call, name, options, reason):
    part = call(name, **options)
    assert part.outcome == "unchecked"
    assert reason in part.findings[0].text
    assert part.traceback == ""


@pytest.mark.parametrize("name", ["no_such_models:step", "no_such.models:step"])
def test_a_module_that_is_none_is_refused(call, name):
    with pytest.raises(CheckError, match=r"there is no module 'no_such.models'"):
        call(name)


def test_an_error_in_a_module_is_the_programs_own(call):
    part = call("own_models:step", models="import torch\ntorch.zeros(2) @ 3\n")
    assert part.outcome == "error"
    assert part.findings[0].line == 2
