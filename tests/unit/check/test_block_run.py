"""Scripts and functions, recorded in this process."""

import pytest

from meta_magic.check.block_run import run_function, run_script
from meta_magic.check.records import read_subject
from meta_magic.errors import CheckError
from meta_magic.recording.as_device.oracle import oracle


@pytest.fixture
def run(ask, tmp_path):
    def run(script, **options):
        (tmp_path / "a.py").write_text(script, encoding="utf-8")
        request = ask(read_subject("a.py"), files={}, **options)
        (part,) = run_script(request)
        return part

    return run


@pytest.mark.parametrize(
    ("script", "outcome", "message"),
    [
        ("import sys; sys.exit()", "right", None),
        ("import sys; sys.exit(1)", "error", "it ended with exit code 1"),
        (
            "import torch; torch.ones(2, device='meta').to('cpu')",
            "error",
            "put on 'meta' by name",
        ),
        ("raise SystemExit('no data')", "error", "it ended with exit code 'no data'"),
        ("import sys; sys.exit(2)", "unchecked", "it does not take its arguments"),
        ("import sys; n = int(sys.argv[1])", "unchecked", "it needs arguments"),
        ("import nothing_like_it", "unchecked", "which is not installed"),
        ("open('nowhere.csv')", "unchecked", "FileNotFoundError"),
        ("x = 1\ny = = 2", "error", "SyntaxError: invalid syntax"),
        ("x = '\0'", "error", "null byte"),
        ("print(unknown)", "error", "NameError: name 'unknown' is not defined"),
        ("", "right", None),
    ],
)
def test_how_a_script_ends_is_what_comes_of_it(run, script, outcome, message):
    part = run(script)
    assert part.outcome == outcome
    assert message is None or message in part.diagnostics[0].text


def test_a_syntax_error_has_its_line(run):
    (found,) = run("x = 1\ny = = 2").diagnostics
    assert (found.line, found.file[-4:]) == (2, "a.py")


def test_the_traceback_begins_in_the_script_and_has_no_frame_of_ours(run):
    part = run("def f():\n    return 1 / 0\nf()\n")
    lines = [
        line.split(", ")[1:] for line in part.traceback.splitlines() if "File" in line
    ]
    assert lines == [["line 3", "in <module>"], ["line 2", "in f"]]
    assert part.diagnostics[0].line == 2


def test_an_error_of_a_tensor_is_explained_at_its_line(run):
    part = run("import torch\nx = torch.zeros(3, 4)\nx @ x\n")
    assert part.diagnostics[0].line == 3
    assert "of x (4)" in part.explanation
    assert "repairs that ran" in part.explanation


def test_a_note_has_its_line(run):
    part = run("import torch\n\nfloat(torch.zeros(3).sum())\n")
    (note,) = part.diagnostics
    assert (note.level, note.line, note.file[-4:]) == ("note", 3, "a.py")
    assert part.outcome == "right"


def test_a_script_has_its_own_arguments(run):
    script = "import sys\nassert sys.argv[1:] == ['--width', '7']"
    assert run(script, argv=("--width", "7")).outcome == "right"


def test_the_cpu_is_asked_about_each_call_however_busy_the_machine_is(run, monkeypatch):
    for limit in ("MIN_SECONDS", "MAX_SHARE"):  # no time is left from the beginning
        monkeypatch.setattr(oracle, limit, -1.0)
    # Meta takes weights of another dtype, and the CPU does not.
    script = """\
import torch
layer = torch.nn.LayerNorm(7)
x = torch.zeros(3, 7, dtype=torch.float64)
layer(x)
"""
    part = run(script)
    assert part.outcome == "error"
    assert "all inputs must share same datatype" in part.diagnostics[0].text


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


def make_tokens():
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
    (root,) = call("own_models.py:build", has_design=True).design.roots
    assert (root.name, root.class_name) == ("result", "Linear")


@pytest.mark.parametrize(
    "options",
    [
        {"arguments": '[{"shape": [5, 6], "dtype": "float16"}]'},
        {"arguments": '{"x": {"shape": [5, 6]}, "times": 3}'},
        {"factory": "own_models:make"},
        {"factory": "own_models.py:make_tokens"},
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
    assert reason in part.diagnostics[0].text
    assert part.traceback == ""


@pytest.mark.parametrize("name", ["no_such_models:step", "no_such.models:step"])
def test_a_module_that_is_none_is_refused(call, name):
    with pytest.raises(CheckError, match=r"there is no module 'no_such.models'"):
        call(name)


def test_an_error_in_a_module_is_the_programs_own(call):
    part = call("own_models:step", models="import torch\ntorch.zeros(2) @ 3\n")
    assert part.outcome == "error"
    assert part.diagnostics[0].line == 2
