"""Scripts, run here: what comes of each."""

import pytest

from meta_magic.check.block_run import run_script
from meta_magic.check.records import read_subject
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
    ("script", "outcome", "words"),
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
def test_how_a_script_ends_is_what_comes_of_it(run, script, outcome, words):
    part = run(script)
    assert part.outcome == outcome
    assert words is None or words in part.findings[0].text


def test_a_syntax_error_has_its_line(run):
    (found,) = run("x = 1\ny = = 2").findings
    assert (found.line, found.file[-4:]) == (2, "a.py")


def test_the_traceback_begins_in_the_script_and_has_no_frame_of_ours(run):
    part = run("def f():\n    return 1 / 0\nf()\n")
    lines = [
        line.split(", ")[1:] for line in part.traceback.splitlines() if "File" in line
    ]
    assert lines == [["line 3", "in <module>"], ["line 2", "in f"]]
    assert part.findings[0].line == 2


def test_an_error_of_a_tensor_is_explained_at_its_line(run):
    part = run("import torch\nx = torch.zeros(3, 4)\nx @ x\n")
    assert part.findings[0].line == 3
    assert "of x (4)" in part.explanation
    assert "repairs that ran" in part.explanation


def test_a_note_has_its_line(run):
    part = run("import torch\n\nfloat(torch.zeros(3).sum())\n")
    (note,) = part.findings
    assert (note.level, note.line, note.file[-4:]) == ("note", 3, "a.py")
    assert part.outcome == "right"


def test_a_script_has_its_own_arguments(run):
    script = "import sys\nassert sys.argv[1:] == ['--width', '7']"
    assert run(script, argv=("--width", "7")).outcome == "right"


def test_a_script_may_be_written_in_another_encoding(run, tmp_path):
    (tmp_path / "b.py").write_bytes("# coding: latin-1\nx = 'é'".encode("latin-1"))
    assert run("exec(open('b.py', 'rb').read())").outcome == "right"


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
    assert "all inputs must share same datatype" in part.findings[0].text
