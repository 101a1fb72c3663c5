"""``%meta materialize NAME``: the button of the report, without a mouse."""

import re

import pytest
import torch

BUILD = "torch.manual_seed(0)\nmodel = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))"


@pytest.fixture
def run(shell, capsys):
    """Run a cell; give its value, its error and what it printed."""

    def run_cell(source):
        result = shell.run_cell(source)
        error = result.error_in_exec or result.error_before_exec
        printed = capsys.readouterr()
        return result.result, error, printed.out + printed.err

    return run_cell


@pytest.fixture
def model(shell, run):
    """A model that was built under ``%%meta``, as the variable ``model``."""
    run(f"%%meta -q\n{BUILD}")
    return shell.user_ns["model"]


def eager(shell, run):
    """Return what the same cell builds on the CPU."""
    run(f"alias = model\n{BUILD}\nreal, model = model, alias")
    return shell.user_ns["real"]


def is_equal(module, other):
    pairs = zip(module.parameters(), other.parameters(), strict=True)
    return all(torch.equal(a, b) for a, b in pairs)


def test_a_variable_becomes_the_real_module(shell, run, model):
    report, error, _ = run("%meta materialize model")
    assert error is None
    assert report.names("replay") == (*("0.weight", "0.bias", "1.weight", "1.bias"),)
    assert shell.user_ns["model"] is model
    assert is_equal(model, eager(shell, run))


def test_the_report_is_shown_as_text(run, model):
    _, _, shown = run("%meta materialize model")
    assert "Sequential on cpu: 4 tensors, 104 bytes, in " in shown


def test_an_expression_names_a_submodule(run, model):
    run("%meta materialize model[1]")
    assert [p.is_meta for p in model.parameters()] == [True, True, False, False]


def test_options_are_those_of_the_function(run, model):
    report, error, _ = run(
        "%meta materialize model --init empty --dtype bfloat16 --device cpu"
    )
    assert error is None
    assert report.uninitialized == tuple(dict(model.named_parameters()))
    assert {p.dtype for p in model.parameters()} == {torch.bfloat16}


def test_a_state_before_any_use_can_be_chosen(shell, run):
    run(f"%%meta -q\n{BUILD}\nmodel.append(nn.BatchNorm1d(2))(torch.ones(4, 3))")
    _, error, _ = run("%meta materialize model --state constructed")
    assert error is None
    assert shell.user_ns["model"][2].num_batches_tracked == 0
    assert is_equal(shell.user_ns["model"][:2], eager(shell, run))


def test_what_it_would_do_can_be_asked_before(run, model):
    report, error, shown = run("%meta materialize model --plan")
    assert (report, error) == (None, None)
    assert re.fullmatch(
        r"\d+ operators, less than a second; takes 104 bytes on cpu, [\d.]+ bytes at "
        r"peak\n",
        shown,
    )
    assert all(p.is_meta for p in model.parameters())


def test_a_dtype_may_have_its_module(run, model):
    run("%meta materialize model --dtype torch.float16")
    assert model[0].weight.dtype == torch.float16


def test_a_checkpoint_is_given_by_its_path(shell, run, model, tmp_path):
    wanted = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Linear(4, 2))
    torch.save(wanted.state_dict(), tmp_path / "saved.pt")
    report, _, _ = run(f"%meta materialize model --init {tmp_path / 'saved.pt'}")
    assert report.names("checkpoint") == tuple(dict(model.named_parameters()))
    assert is_equal(model, wanted)


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("nobody", "'nobody' cannot be evaluated: NameError"),
        ("model[7]", "'model[7]' cannot be evaluated: IndexError"),
        ("model --dtype int99", "--dtype int99: torch has no such dtype"),
        ("model --dtype nn", "--dtype nn: torch has no such dtype"),
        ("model --dtype int64", "choose a floating-point one"),
        ("model --device moon", "moon"),
        ("model --state new", "choose 'current' or 'constructed'"),
        ("model --init nowhere.pt", "there is no checkpoint 'nowhere.pt'"),
        (
            "torch",
            "wanted a module, a tensor or an object that holds some, not a module",
        ),
        ("model other", "'model other' cannot be evaluated: SyntaxError"),
        ("model --init 'x", "No closing quotation"),
        ("model --bogus", "unrecognized arguments: --bogus"),
        ("model --dtype", "expected one argument"),
    ],
)
def test_a_bad_line_is_an_error_that_names_it_and_changes_nothing(
    run, model, line, text
):
    _, error, shown = run(f"%meta materialize {line}")
    assert error is not None
    assert text in f"{error}{shown}"
    assert "meta_magic/" not in shown
    assert all(p.is_meta for p in model.parameters())


def test_help_lists_the_options(run, model):
    _, error, shown = run("%meta materialize --help")
    assert error is None
    assert "--device" in shown
    assert all(p.is_meta for p in model.parameters())


def test_a_statement_that_begins_with_the_word_is_a_statement(shell, run):
    run("%meta materialize = torch.ones(3)")
    assert shell.user_ns["materialize"].is_meta


def test_it_is_not_recorded(shell, run, model):
    trace = shell.user_ns["_meta"]
    run("%meta materialize model")
    assert shell.user_ns["_meta"] is trace


def test_all_takes_what_the_variables_hold(shell, run, model):
    run("%%meta -q\nbatch = {'x': torch.ones(2, 3)}\nhidden = [model[0].weight * 2]")
    report, error, shown = run("%meta materialize --all")
    assert error is None
    assert is_equal(model, eager(shell, run))
    namespace = shell.user_ns
    assert namespace["batch"]["x"].tolist() == [[1, 1, 1]] * 2
    assert torch.equal(namespace["hidden"][0], model[0].weight * 2)
    assert "hidden[0]" in report.names("replay")
    assert "Variables on cpu: 6 tensors" in shown


def test_all_is_planned_and_done_only_when_asked(run, model):
    _, error, shown = run("%meta materialize --all --plan")
    assert error is None
    assert "takes 104 bytes on cpu" in shown
    assert model[0].weight.is_meta


def test_a_name_and_all_contradict_each_other(run, model):
    _, error, _ = run("%meta materialize model --all")
    assert "give either --all or 'model', not both" in str(error)
    assert model[0].weight.is_meta


def test_what_else_is_on_meta_is_named(run, model):
    run("%%meta -q\nbatch = {'x': torch.ones(2, 3)}")
    report, _, shown = run("%meta materialize model")
    assert report.on_meta == ("batch['x']",)
    assert "still on meta: 1 (batch['x']); mm.materialize(...) takes" in shown
    assert not model[0].weight.is_meta
