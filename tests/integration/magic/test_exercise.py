"""``%%exercise`` and ``%%meta --exercise`` in a real shell."""

import pytest
from IPython.core.error import UsageError

OUTER = """%%exercise outer
a, b = torch.arange(3), torch.arange(4)
### BEGIN SOLUTION
x = a[:, None] + b
### END SOLUTION"""


def test_a_right_answer_is_said_and_runs_in_the_notebook(shell, capsys):
    shell.run_cell(OUTER)
    assert shell.user_ns["a"].tolist() == [0, 1, 2]
    shell.run_cell("%%meta --exercise outer\nx = a[:, None] + b")
    assert "outer is right" in capsys.readouterr().out
    assert shell.user_ns["x"].shape == (3, 4)


def test_a_wrong_answer_is_said_why_and_then_graded(shell, capsys):
    shell.run_cell(OUTER)
    shell.run_cell("%%meta --exercise outer\nx = a + b[:, None]")
    assert "their order is not" in capsys.readouterr().out
    result = shell.run_cell("import meta_magic as mm\nmm.grade('outer') * 2").result
    assert result == 0


def test_an_answer_that_calls_exit_does_not_end_the_shell(shell, capsys):
    shell.run_cell(OUTER)
    shell.run_cell("%%meta --exercise outer\nraise SystemExit")
    assert "SystemExit" in capsys.readouterr().out


def test_an_answer_is_kept_for_a_hidden_test(shell, capsys):
    shell.run_cell("%%meta -q --exercise later\ny = torch.ones(3).sum()")
    assert "unless a hidden test grades it" in capsys.readouterr().out
    hidden = (
        'mm.exercise("later", "", "y = torch.tensor(3.0)", ["y"])\nmm.grade("later")'
    )
    result = shell.run_cell(f"import meta_magic as mm\n{hidden}").result
    assert result == 1


@pytest.mark.parametrize("cell", ["%%exercise\nx = 1", "%%exercise a\nx=1"])
def test_misuse_is_an_error_of_usage(shell, capsys, cell):
    error = shell.run_cell(cell).error_in_exec
    assert isinstance(error, UsageError)
