"""Tracebacks of ``%%meta`` cells: the user's frames, and one line for torch's."""

import io
import re
import sys
import traceback

import pytest

from tests.integration.kernels import ANSI, ARROW

MISMATCH = "%%meta\nnn.Linear(2, 3)(torch.ones(5))"


def marked_lines(shown):
    return list(map(int, ARROW.findall(shown)))


def list_earlier(error):
    """Yield the errors that were handled when another was raised."""
    while error.__context__ is not None:
        error = error.__context__
        yield error


def test_the_frames_of_torch_are_one_line(run):
    _, shown = run("%%meta\nmodel = nn.Linear(2, 3)\nmodel(torch.ones(5))")
    assert marked_lines(shown) == [3]
    assert len(re.findall(r"\[\.\.\. \d+ frames of torch folded", shown)) == 1
    assert "/torch/" not in shown


def shown_before(shell):
    """Return the lines of what a cell displayed above its traceback."""
    return shell.display_pub.outputs[0]["data"]["text/plain"].splitlines()


def test_above_the_traceback_stands_the_explanation(shell, run):
    run(MISMATCH)
    above = shown_before(shell)
    where = "dimension 0 of torch.ones(5) (5)"
    assert above[:10] == [
        "Linear(2 -> 3) got (5,) at line 2",
        "line 2: nn.Linear(2, 3)(torch.ones(5))    in Linear",
        "    torch.ones(5)  (5,) float32",
        "    Linear.weight  (3, 2) float32",
        "    Linear.bias    (3,) float32",
        f"  {where} must equal dimension 1 of Linear.weight (2)",
        "  why 5 = in torch.ones(5), written (line 2)",
        "  why 2 = Linear.in_features, written (line 2)",
        "repairs that ran",
        "    line 2  nn.Linear(2, 3)(torch.ones(5))",
    ]
    assert "    ->      nn.Linear(2, 3)(torch.ones(2))" in above
    assert len(above) <= 26


def test_below_the_traceback_one_line_names_the_recording(shell, run):
    run(MISMATCH)
    _, line = shell.display_pub.outputs
    assert line["data"] == {
        "text/plain": "Recording: 7 operators up to line 2 (run %meta to print it)"
    }


@pytest.mark.parametrize(
    "statement",
    ["undefined", "raise ValueError(x.shape)", "import no_such_module", "x.no_such"],
)
def test_an_error_that_is_not_of_torch_has_the_line_alone(shell, run, statement):
    run(f"%%meta\nx = torch.ones(2)\n{statement}")
    (line,) = shell.display_pub.outputs
    assert line["data"]["text/plain"].startswith("Recording: 1 operator up to line 3")


def test_a_cell_that_fails_before_any_operator_shows_its_error_alone(shell, run):
    run("%%meta\nundefined")
    assert shell.display_pub.outputs == []


@pytest.mark.parametrize("mode", ["Plain", "Context"])
def test_what_is_folded_is_said_in_each_mode_that_shows_frames(shell, run, mode):
    shell.run_cell(f"%xmode {mode}")
    _, shown = run(MISMATCH)
    assert "frames of torch folded: %meta full shows all]" in shown


def test_full_shows_the_newest_error_with_all_frames(run):
    run(MISMATCH)
    _, shown = run("%meta full")
    assert marked_lines(shown)[0] == 2
    assert "/torch/" in shown
    assert "meta_magic/" in shown
    assert "folded" not in shown


def test_the_end_of_a_very_long_line_is_shown_by_full_alone(shell, run):
    _, shown = run("%%meta\nraise ValueError(f'no {\"k\" * 5000}.')")
    assert "k... (and " in shown
    assert len(shown) < 2_500
    assert len(shell.user_ns["_meta"].error) < 1_100
    _, whole = run("%meta full")
    assert "k." in whole


def test_full_shows_the_frames_that_record_hides_in_a_plain_cell(run):
    cell = "import meta_magic\nwith meta_magic.record():\n    nn.Linear(2, 3)(x)"
    _, plain = run(f"x = torch.ones(5)\n{cell}")
    _, shown = run("%meta full")
    assert marked_lines(plain)[0] == 4
    assert "/torch/" not in plain
    assert "/torch/" in shown


def test_an_error_that_is_shown_keeps_all_of_its_frames(run):
    error, _ = run(MISMATCH)
    files = [entry.filename for entry in traceback.extract_tb(error.__traceback__)]
    assert any("/torch/" in file for file in files)


def test_the_cause_of_an_error_is_folded_as_it_is(run):
    error, shown = run(
        "%%meta\ntry:\n    nn.Linear(2, 3)(torch.ones(5))\n"
        "except RuntimeError as e:\n    raise KeyError('a') from e"
    )
    assert marked_lines(shown) == [3, 5]
    assert "RuntimeError" in shown
    assert "KeyError: 'a'" in shown
    assert "/torch/" not in shown
    assert "meta_magic/" not in shown
    files = [e.filename for e in traceback.extract_tb(error.__cause__.__traceback__)]
    assert any("/torch/" in file for file in files)


def test_an_error_that_never_reached_the_user_is_not_shown_with_another(run):
    cell = "%%meta\nx = torch.rand(10**12)\nx[x > 0.5]"  # beyond the limits
    error, shown = run(cell)
    assert any(
        isinstance(e, NotImplementedError) for e in list_earlier(error)
    )  # of torch
    assert marked_lines(shown) == [3]
    assert "During handling" not in shown


def test_an_error_that_the_user_was_handling_is_shown_with_another(run):
    _, shown = run(
        "%%meta\ntry:\n    1 / 0\nexcept ZeroDivisionError:\n"
        "    torch.randn(2, 3)[torch.ones(2, 4, dtype=torch.bool)]"
    )
    assert marked_lines(shown) == [3, 5]
    assert "NotImplementedError" not in shown


@pytest.fixture
def library(tmp_path, monkeypatch):
    """Install a library whose two functions call each other, and then what they get."""
    home = tmp_path / "site-packages"
    home.mkdir()
    (home / "somelibrary.py").write_text(
        "def outer(call):\n    inner(call)\n\ndef inner(call):\n    call()\n"
    )
    monkeypatch.syspath_prepend(str(home))
    yield "somelibrary"
    sys.modules.pop("somelibrary", None)


def test_of_a_library_that_called_torch_the_innermost_frame_is_shown(run, library):
    _, shown = run(
        f"%%meta\nimport functools, {library}\n"
        f"{library}.outer(functools.partial(nn.Linear(2, 3), torch.ones(5)))"
    )
    assert marked_lines(shown) == [3, 5]
    assert "frames of somelibrary, torch folded" in shown


def test_of_a_library_that_raised_without_torch_every_frame_is_shown(run, library):
    _, shown = run(f"%%meta\nimport {library}\n{library}.outer(lambda: 1 / 0)")
    assert marked_lines(shown) == [3, 2, 5, 3]


@pytest.mark.usefixtures("keep_tracer")
@pytest.mark.parametrize(
    ("fails", "step"), [("nn.Linear(2, 3)(x)", "down"), ("1 / 0", "up")]
)
def test_debug_stands_in_the_users_frame(shell, monkeypatch, capsys, fails, step):
    shell.run_cell(f"def fail(x):\n    secret = 41 + 1\n    return {fails}")
    shell.run_cell("%%meta\nfail(torch.ones(5))")
    monkeypatch.setattr(sys, "stdin", io.StringIO(f"p secret\n{step}\nquit\n"))
    capsys.readouterr()
    shell.run_cell("%debug")
    shown = ANSI.sub("", capsys.readouterr().out)
    assert "ipdb> 42\n" in shown
    assert "Oldest frame" not in shown
    assert "Newest frame" not in shown
    assert step == "down" or "fail(torch.ones(5))" in shown


@pytest.mark.usefixtures("keep_tracer")
def test_debug_of_a_plain_cell_stands_in_the_frame_that_raised(
    shell, monkeypatch, capsys
):
    shell.run_cell("import json\njson.loads('{')")
    monkeypatch.setattr(sys, "stdin", io.StringIO("p __name__\nquit\n"))
    capsys.readouterr()
    shell.run_cell("%debug")
    assert "ipdb> 'json.decoder'\n" in ANSI.sub("", capsys.readouterr().out)
