"""Budgets, baselines and files of ``meta-magic check``."""

import json
import subprocess
import sys
from xml.etree import ElementTree as ET

import pytest

from meta_magic.check.commands import main

LINEAR = "import torch\nmodel = torch.nn.Linear({}, 4)\nmodel(torch.zeros(2, {}))\n"


def test_a_model_that_outgrows_its_budget_fails(check):
    script = LINEAR.format(3, 3)  # 3 x 4 weights and 4 biases
    assert check("a.py", "--budget", "params<=16, flops<1e15", a=script)[0] == 0
    code, text = check("a.py", "--budget", "params<16, flops<1e15")
    assert code == 1
    assert "budget: params is 16 (16), and the budget is params < 16" in text


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--budget", "beauty<3"], "'beauty' is no quantity of a budget"),
        (["--budget", "params"], "is no limit"),
        (["--baseline", "none.json"], "--update makes it"),
        (["--baseline", "a.py"], "a.py is no baseline"),
        (["--ranks", "0"], "--ranks needs --world"),
        (["--update"], "--update needs the file that --baseline names"),
        (["--html", "no/such/folder/a.html"], "No such file"),
    ],
)
def test_an_option_that_is_none_is_refused_with_the_reason(check, arguments, reason):
    code, text = check("a.py", *arguments, a="")
    assert code == 2
    assert reason in text


@pytest.mark.parametrize(
    ("line", "error"),
    [
        ("chek a.py", "; did you mean 'check'?"),
        ("check a.py --wolrd 2", "arguments: --wolrd 2; did you mean '--world'?"),
        ("fit a.py --assmue x", "arguments: --assmue x; did you mean '--assume'?"),
        ("class biuld a.ipynb", "; did you mean 'build'?"),
        ("check a.py --xyzzy", "arguments: --xyzzy\n"),
    ],
)
def test_a_word_that_is_not_known_is_answered_with_the_nearest(capsys, line, error):
    with pytest.raises(SystemExit):
        main(line.split())
    assert error in capsys.readouterr().err


def test_likely_mistakes_are_reported_where_that_is_chosen(check, tmp_path):
    script = "import torch\nx = torch.ones(4, 8, 8, 3).view(4, 3, 8, 8)\n"
    sarif = tmp_path / "out.sarif"
    assert check("a.py", "--sarif", str(sarif), a=script)[0] == 0
    assert '"mixed"' not in sarif.read_text()
    code, text = check("a.py", "--wrong", "--sarif", str(sarif))
    assert code == 0
    assert "note: line 2: view of (4, 8, 8, 3) to (4, 3, 8, 8) mixes" in text
    results = json.loads(sarif.read_text())["runs"][0]["results"]
    assert "mixed" in [result["ruleId"] for result in results]


def test_the_first_call_that_mixes_the_samples_of_a_named_batch_is_reported(check):
    script = "import torch\nB = 4\ntorch.nn.LSTM(3, 2)(torch.ones(B, 5, 3))\n"
    _, text = check("--wrong", "a.py", a=script)
    assert "lstm mixes samples" not in text
    code, text = check("--wrong", "batch=B", "a.py")
    assert code == 0
    assert "note: line 3: lstm mixes samples of the batch" in text
    assert check("--wrong", "batch=B D", "a.py")[0] == 2


def test_shapes_are_shown_by_the_names_that_are_chosen(check):
    script = "import torch\nB, D = 4, 3\nmodel = torch.nn.Linear(D, 2 * D)\n"
    script += "model(torch.zeros(B, D))\n"
    code, text = check("a.py", "--dims", "B,D", a=script)
    assert code == 0
    assert "(B, D) -> (B, 2*D)" in text
    assert check("a.py", "--dims", "B D")[0] == 2
    code, text = check("a.py", "--dims", "Q")
    assert "no sizes have names: the block has no name 'Q'" in text


FORGOTTEN = """
import torch
from torch import nn

class Rotary(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("inv_freq", 1 / torch.arange(1, 5))
        self.proj = nn.Linear(4, 4)

def build(is_right=False):
    with torch.device("meta"):
        model = Rotary()
    model.to_empty(device="cpu")
    model.proj.reset_parameters()
    if is_right:
        model.inv_freq.copy_(1 / torch.arange(1, 5))
    nn.init.zeros_(model.proj.bias)
    return model

def nothing():
    pass
"""


def test_what_nothing_initialized_is_an_error_if_asked_for(check):
    code, text = check("a.py:build", "--init", a=FORGOTTEN)
    assert code == 1
    assert (
        "uninitialized: result.inv_freq is uninitialized memory: nothing "
        "wrote it after line 14; its constructor gave computed values (line 8)"
    ) in text
    # In line 9 the constructor drew the bias, and line 18 makes it 0.
    assert "result.proj.bias holds 0 (line 18), and its constructor gave" in text
    assert check("a.py:build", "--init", "--args", '{"is_right": true}')[0] == 0
    assert check("a.py:build")[0] == 0
    code, text = check("a.py:nothing", "--init")
    assert (code, "--init has nothing to check" in text) == (2, True)


def test_what_changed_since_a_baseline_is_reported_until_it_is_updated(check):
    baseline = "--baseline", "trace.json"
    code, text = check("a.py", *baseline, "--update", a=LINEAR.format(3, 3))
    assert (code, "changed" in text) == (0, False)
    assert "changed" not in check("a.py", *baseline)[1]
    code, text = check("a.py", *baseline, a=LINEAR.format(5, 5))
    assert code == 0
    assert "changed: params: 16 -> 24 (+50.0%)" in text
    assert "changed: ~ model: Linear  in_features 3 -> 5" in text
    assert "changed" in check("a.py", *baseline, "--update")[1]
    assert "changed" not in check("a.py", *baseline)[1]


def test_several_are_checked_and_written_to_one_file_of_each_kind(check, tmp_path):
    files = "--junit", "j.xml", "--sarif", "s.sarif", "--html", "h.html"
    wrong = "import torch\ntorch.zeros(2) @ torch.zeros(3)\n"
    right = LINEAR.format(3, 3)
    code, text = check("a.py", "b.py", "none.py", *files, a=right, b=wrong)
    assert code == 1
    assert text.endswith("3 checked: 1 right, 1 error, 1 cannot be checked\n")
    suite = ET.parse(tmp_path / "j.xml").getroot().find("testsuite")
    assert [suite.get(n) for n in ("tests", "failures", "errors")] == ["3", "1", "1"]
    (run,) = json.loads((tmp_path / "s.sarif").read_text())["runs"]
    assert {"error", "unchecked"} <= {result["ruleId"] for result in run["results"]}
    for name in ("h.html", "h-2.html"):
        assert (tmp_path / name).read_text().startswith("<!doctype html>")


def test_the_command_imports_no_torch(tmp_path):
    code = (
        "import sys; from meta_magic.check.commands import main; "
        "main(['check', 'none.py']); print('torch' in sys.modules)"
    )
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert run.stdout.endswith("False\n")


def test_what_a_script_prints_is_shown_if_asked_for(tmp_path, forked_pythons, capfd):
    script = tmp_path / "a.py"
    script.write_text("print('so many arguments')")
    for world, line in (((), "so many arguments\n"), (("--world", "2"), "rank 0: so")):
        assert main(["check", str(script), "--verbose", *world]) == 0
        out, err = capfd.readouterr()
        assert line in err
        assert "so many arguments" not in out


def test_help_says_what_exit_codes_mean(check, capsys):
    with pytest.raises(SystemExit, match="0"):
        check("--help")
    assert "2 something cannot be checked" in " ".join(capsys.readouterr().out.split())
