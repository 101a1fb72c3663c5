"""Errors of a ``%%meta`` cell: shown once, at the user's line, without our frames."""

import re
import sys
import traceback

import pytest
import torch


class Marked(torch.Tensor):
    """A subclass, of which nobody knows what it means."""


def marked_lines(shown):
    return [int(line) for line in re.findall(r"^-+> (\d+)", shown, re.MULTILINE)]


@pytest.mark.parametrize(
    ("cell", "line"),
    [
        ("%%meta\n1 / 0", 2),
        ("%%meta -q\nx = 1\n1 / 0", 3),
        ("%%meta\n\n\n1 / 0", 4),
        ("\n\n%%meta\n1 / 0", 4),
        ("\n%%meta\n\n1 / 0\n\n", 4),
        ("%%time\n%%meta\n1 / 0", 3),
        ("%%meta\n%%meta\n1 / 0", 3),
        ("%%meta\n%%time\nx = 1\n1 / 0", 4),
        ("%%meta\n\n%%time\n\n1 / 0", 5),
        ("%%meta\n%time x = 1\n%time 1 / 0", 3),
        ("%%meta\nfor n in range(1):\n    y = %time n / 0", 3),
        ("%%meta\n%time for n in range(1): n / 0", 2),
        ("%%time\n%%meta\nx = 1\n%time 1 / 0", 4),
        ("%%meta\nimport asyncio\nawait asyncio.sleep(0)\n1 / 0", 4),
        ("%%meta\n\nimport asyncio\n1 / 0\nawait asyncio.sleep(0)", 4),
        ("%%meta\na = !echo hi\n%pwd\n1 / 0", 4),
    ],
)
def test_an_error_is_marked_at_the_line_of_the_notebook(shell, capsys, cell, line):
    shell.run_cell(cell)
    assert traceback.extract_tb(sys.last_value.__traceback__)[-1].lineno == line


AWAITS = "%%meta\nimport asyncio\nawait asyncio.sleep(0)\n1 / 0"


@pytest.mark.parametrize("cell", ["%%meta\n1 / 0", "%%meta\n\n\n1 / 0", AWAITS])
def test_the_arrow_points_at_the_line_of_the_notebook_and_no_frame_is_ours(run, cell):
    _, shown = run(cell)
    assert marked_lines(shown) == [cell.count("\n") + 1]
    assert "meta_magic/" not in shown


def test_a_function_of_an_earlier_cell_is_marked_at_its_own_line(shell, run):
    shell.run_cell("def fail():\n    return 1 / 0", store_history=True)
    _, shown = run("%%meta\nx = 1\nfail()")
    assert marked_lines(shown) == [3, 2]


@pytest.mark.parametrize("mode", ["Plain", "Context", "Verbose", "Minimal"])
def test_no_frame_of_ours_is_shown_in_any_mode(shell, run, mode):
    shell.run_cell(f"%xmode {mode}")
    _, shown = run("%%meta\nx = torch.ones(2)\n1 / 0")
    assert "ZeroDivisionError: division by zero" in shown
    assert "meta_magic/" not in shown
    assert "run_cell_magic" not in shown


def test_tb_shows_the_error_again_as_it_was(shell, run):
    _, shown = run("%%meta\nx = 1\n1 / 0")
    _, again = run("%tb")
    assert again.strip() == shown.strip()


def test_the_error_object_is_the_users_own(run):
    error, _ = run("%%meta\nmine = ValueError('mine')\nraise mine")
    assert type(error) is ValueError
    assert error.args == ("mine",)
    assert error.__cause__ is error.__context__ is None


def test_an_error_raised_again_by_a_plain_cell_is_shown_where_that_raised_it(run):
    run("%%meta\nkept = ValueError('kept')\nraise kept")
    _, shown = run("x = 1\n\n\nraise kept")
    assert marked_lines(shown)[0] == 4


def test_a_handler_of_the_user_is_called_with_the_error(shell):
    seen = []

    def handle(shell, kind, error, tb, tb_offset=None):
        seen.append(kind)

    shell.set_custom_exc((ZeroDivisionError,), handle)
    shell.run_cell("%%meta\n1 / 0")
    shell.set_custom_exc((), None)
    assert seen == [ZeroDivisionError]


def test_system_exit_fails_the_cell_and_no_more(shell):
    result = shell.run_cell("%%meta\nimport sys\nsys.exit(3)")
    assert isinstance(result.error_in_exec, SystemExit)
    assert shell.run_cell("41 + 1").result == 42


# Code that does not parse.


@pytest.mark.parametrize(
    ("body", "line", "kind"),
    [
        ("y = (1 +", 2, SyntaxError),
        ("x = 1\n\ny = = 2", 4, SyntaxError),
        ("\n\nreturn 5 5", 4, SyntaxError),
        ("x = 1\nreturn 5", 3, SyntaxError),
        ("x = 1\n  y = 2", 3, IndentationError),
        ("if True:\nx = 1", 3, IndentationError),
    ],
)
def test_a_syntax_error_is_shown_at_the_line_of_the_notebook(run, body, line, kind):
    error, shown = run(f"%%meta\n{body}")
    assert isinstance(error, kind)
    assert f"line {line}" in shown
    assert "meta_magic/" not in shown


def test_a_syntax_error_in_a_statement_is_one_line(run):
    error, shown = run("%meta y = = 2")
    assert str(error) == "%meta: SyntaxError: invalid syntax: y = = 2"
    assert shown == ""


def test_of_a_cell_that_does_not_parse_nothing_runs_or_is_shown(shell):
    shell.run_cell("%%meta\nran = 1\ny = = 2")
    assert not {"ran", "_meta"} & shell.user_ns.keys()
    assert shell.display_pub.outputs == []


# Errors that only a meta cell has.


def test_a_write_into_a_real_tensor_names_it(shell, run):
    shell.run_cell("real = torch.ones(2, 3)")
    error, _ = run("%%meta\nreal.view(-1)[:3] = torch.ones(3)")
    assert "would change your real `real`" in str(error)


@pytest.mark.parametrize(
    ("layer", "shape"), [("Linear(3, 4", (2, 3)), ("Conv1d(3, 4, 1", (2, 3, 5))]
)
def test_what_cannot_be_captured_and_a_meta_module_are_named(shell, run, layer, shape):
    shell.user_ns["real"] = torch.ones(shape).as_subclass(Marked)
    error, _ = run(f"%%meta\nlayer = nn.{layer}, bias=False)\nlayer(real)")
    assert "'real' (cpu float32" in str(error)
    assert "'layer.weight' (meta float32 (4, 3" in str(error)


@pytest.mark.parametrize(
    "expression",
    ["x.item()", "float(x)", "bool(x)", "x.tolist()", "x.numpy()",
     "x.cpu().numpy()", "x.nonzero()", "1 if x > 0 else 2", "x[x > 0]", "x.unique()"],
)  # fmt: skip
def test_a_value_that_is_nowhere_is_explained(shell, run, expression):
    shell.user_ns["x"] = torch.ones(1, device="meta")
    error, shown = run(f"%%meta\n\n{expression}")
    assert "needs the value of a tensor (1,)" in str(error)
    assert "came from outside of the recording" in str(error)
    assert "torch.device('cpu')" in str(error)
    assert marked_lines(shown)[0] == 3


def test_a_value_that_takes_too_much_names_the_option_that_allows_it(run, shell):
    cell = "x = torch.ones(1000)\nx.sum().item()"
    error, shown = run(f"%%meta --value-nbytes 1e3\n{cell}")
    assert "it takes 3.9 KiB" in str(error)
    assert "--value-nbytes" in str(error)
    assert marked_lines(shown)[0] == 3
    result = shell.run_cell(f"%%meta --value-nbytes 1e5 --value-flops 1e6\n{cell}")
    assert result.result == 1000.0
