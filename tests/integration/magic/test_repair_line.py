"""``%meta repair N``: a repair of the newest cell, in a new cell."""

import pytest
from IPython.core.error import UsageError

FAILS = "%%meta -o trace\nx = torch.ones(4, 3)\ny = x @ torch.ones(5, 2)"


@pytest.fixture
def failed(run, shell):
    """The repairs of a cell that failed."""
    run(FAILS)
    return shell.user_ns["_meta"].explanation.repairs


@pytest.mark.parametrize(
    ("line", "number"), [("%meta repair", 0), ("%meta repair 2", 1)]
)
def test_a_repair_is_what_is_typed_next(run, shell, failed, line, number):
    error, _ = run(line)
    assert error is None
    assert shell.rl_next_input == f"%%meta -o trace\n{failed[number].source}"


def test_what_was_put_there_runs(run, shell, failed):
    assert failed
    run("%meta repair 1")
    error, _ = run(shell.rl_next_input)
    assert error is None
    assert shell.user_ns["trace"].error is None
    assert shell.user_ns["y"].shape[1] == 2


def test_a_statement_stays_one(run, shell):
    run("%meta torch.ones(4, 3) @ torch.ones(5, 2)")
    run("%meta repair")
    assert shell.rl_next_input.startswith("%meta torch.ones(")
    error, _ = run(shell.rl_next_input)
    assert error is None


@pytest.mark.parametrize("number", [0, 99])
def test_a_number_that_no_repair_has_is_refused(run, failed, number):
    error, _ = run(f"%meta repair {number}")
    assert isinstance(error, UsageError)
    expected = f"%meta repair {number}: the repairs that ran are 1 to {len(failed)}"
    assert str(error) == expected


def test_without_repairs_it_is_said(run):
    run("%%meta -q\nraise ValueError('mine')")
    error, _ = run("%meta repair 1")
    assert str(error) == "%meta repair 1: the repairs that ran are none"


def test_a_cell_that_did_not_fail_needs_none(run):
    run("%%meta -q\ntorch.ones(3)")
    error, _ = run("%meta repair")
    assert str(error) == "%meta repair: the newest cell did not fail"


def test_a_variable_of_that_name_is_a_statement(run, shell):
    run("repair = 3")
    error, _ = run("%meta repair")
    assert error is None
    assert shell.user_ns["_meta"].error is None


@pytest.mark.kernel
@pytest.mark.usefixtures("kernel_is_left_alone")
def test_a_front_end_is_told_to_make_a_cell(kernel):
    kernel.run(FAILS)
    (payload,) = kernel.run("%meta repair").content["payload"]
    assert payload["source"] == "set_next_input"
    assert payload["text"].startswith("%%meta -o trace\nx = torch.ones(")
    assert payload["replace"] is False
