"""The line of ``%%meta`` and ``%meta``: options, help, configuration, repairs."""

import pytest
from IPython.core.error import UsageError
from IPython.utils.capture import capture_output

from meta_magic.magic.line_options import ends_with_semicolon, silence_at_semicolon
from meta_magic.magic.magics import MetaMagics

OPTIONS = {
    option
    for action in MetaMagics.meta.parser._actions
    for option in action.option_strings
}

BAD_LINES = [
    "--bogus",
    "-o",
    "-o 1x",
    "-o class",
    "-o a.b",
    "--qui",
    "stray",
    "--out a b",
    "-q=1",
    "--quiet=yes",
    "--as tpu",
    "--assume some",
    "--assume nonzero=2",
    "--check rows=B",
    "--check batch=",
]


@pytest.mark.parametrize("line", BAD_LINES)
def test_a_bad_line_is_refused_in_one_line_and_nothing_runs(shell, capsys, line):
    for first in ("", "import asyncio\nawait asyncio.sleep(0)\n"):
        assert not shell.run_cell(f"%%meta {line}\n{first}ran = 1").success
        error = capsys.readouterr().err
        assert error.startswith("UsageError: ")
        assert error.count("\n") == 1
        assert not {"ran", "_meta"} & shell.user_ns.keys()


@pytest.mark.parametrize("option", ["-h", "--help"])
@pytest.mark.parametrize(
    "source", ["%meta {}", "%%meta {}\nran = 1", "%%meta {}\nran = await f()"]
)
def test_help_names_every_option_and_runs_nothing(shell, capsys, source, option):
    shell.run_cell(source.format(option))
    shown = capsys.readouterr().out
    assert [name for name in OPTIONS if name not in shown] == []
    assert not {"ran", "_meta"} & shell.user_ns.keys()


def test_every_option_has_an_example():
    actions = [a for a in MetaMagics.meta.parser._actions if a.option_strings]
    assert [a.dest for a in actions if "Example: " not in a.help] == []


@pytest.mark.parametrize(
    ("device", "kernel"), [("cpu", "flash"), ("cuda", "efficient")]
)
def test_as_a_device_its_kernels_are_recorded(shell, device, kernel):
    shell.run_cell(
        f"%%meta -q --as {device}\n"
        "q = torch.zeros(1, 2, 4, 8)\n"
        "y = nn.functional.scaled_dot_product_attention(q, q, q)"
    )
    trace = shell.user_ns["_meta"]
    assert trace.ops[-1].kernel == f"{kernel} attention, as on {device}"
    assert trace.program.as_device == device


def test_assumptions_of_a_line_hold_for_its_cell(shell):
    shell.run_cell(
        "%%meta -q --value-nbytes 0 --assume nonzero=0.5 --assume routing=uniform\n"
        "some = (torch.rand(8) > 0.5).nonzero()\n"
        "chosen = torch.rand(64, 4).topk(1).indices\n"
        "routed = (chosen == 1).nonzero()"
    )
    assert shell.user_ns["some"].shape == (4, 1)
    assert shell.user_ns["routed"].shape == (16, 2)


def test_values_that_take_long_are_checked_where_that_is_chosen(shell):
    cell = "nn.Embedding(10, 4)(torch.ones(3, 3_000_000).sum(1).long())"
    assert shell.run_cell(f"%%meta -q\n{cell}").success
    result = shell.run_cell(f"%%meta -q --check-values\n{cell}")
    assert str(result.error_in_exec) == "index out of range in self"


def test_likely_mistakes_are_noted_where_that_is_chosen(shell):
    cell = "x = torch.ones(4, 8, 8, 3)\ny = x.view(4, 3, 8, 8)"
    shell.run_cell(f"%%meta -q\n{cell}")
    assert shell.user_ns["_meta"].notes == ()
    shell.run_cell(f"%%meta -q --check\n{cell}")
    (note,) = shell.user_ns["_meta"].notes
    assert (note.kind, note.line, note.lines) == ("mixed", 3, (2,))
    shell.run_cell(f"%%meta -q --check\n{cell}  # meta: ok")
    assert shell.user_ns["_meta"].notes == ()


# %meta


def test_meta_runs_a_statement_whose_value_can_be_assigned(shell):
    assert shell.run_cell("%meta torch.ones(3, 4).sum(0)").result.shape == (4,)
    shell.run_cell("y = %meta torch.ones(3)")
    assert shell.user_ns["y"].is_meta


@pytest.mark.parametrize("line", ["-o kept -q", "-q -o kept", "-q  --out=kept "])
def test_meta_takes_options_before_the_statement(shell, line):
    shell.run_cell(f"%meta {line} x = torch.ones(2)")
    assert shell.user_ns["x"].is_meta
    assert len(shell.user_ns["kept"].ops) == 1
    assert shell.display_pub.outputs == []


def test_meta_without_a_statement_prints_the_newest_trace(shell, capsys):
    shell.run_cell("%%meta -q\nmodel = nn.Linear(2, 3)")
    shell.run_cell("%meta")
    assert capsys.readouterr().out == f"{shell.user_ns['_meta']}\n"


def test_an_error_of_a_statement_is_shown_without_our_frames(shell, capsys):
    shell.run_cell("x = 1\n%meta 1 / 0")
    shown = capsys.readouterr().out
    assert "ZeroDivisionError" in shown
    assert "meta_magic/" not in shown


# Configuration.


@pytest.mark.parametrize("is_file", [False, True])
def test_quiet_can_be_set_for_a_session_and_in_a_configuration_file(shell, is_file):
    if is_file:
        shell.run_cell("%unload_ext meta_magic")
        shell.config.MetaMagics.quiet = True
        shell.run_cell("%load_ext meta_magic\n")
    else:
        shell.run_cell("%config MetaMagics.quiet = True")
    shell.run_cell("%%meta\ntorch.ones(2)")
    assert shell.display_pub.outputs == []


@pytest.mark.parametrize(("depth", "is_shown"), [(1, False), (2, True)])
def test_the_text_is_as_deep_as_it_is_asked_for(shell, depth, is_shown):
    with capture_output() as captured:
        shell.run_cell(
            f"%%meta --depth {depth}\nm = nn.Sequential(nn.Sequential(nn.Tanh()))"
        )
    text = "".join(output.data["text/plain"] for output in captured.outputs)
    assert "m: 1 x Sequential" in text
    assert ("  0: Tanh" in text) == is_shown


HINTS = {
    "%meta materialise x": "did you mean materialize? %meta help lists what there is",
    "%meta hlep": "hlep is not defined (did you mean help?",
    "%meta materialize x --devcie cpu": "--devcie (did you mean --device?",
    "%meta repare 1": "did you mean repair? %meta help lists what there is",
    "%%meta --quite\n1": "did you mean --quiet? %meta --help lists what there is",
    "%%meta --foo\n1": "--foo (%meta --help lists what there is)",
    "%%meta stray\n1": "stray (%meta --help lists what there is)",
    "%%meta -o {shell}\n1": "'{shell}' is none",  # braces are not expanded
    "%%meta --assume routing=random\n1": (
        "'routing=random' is no known assumption; these are: nonzero=all, "
    ),
    "%meta await f()": (
        "UsageError: %%meta: a cell that awaits needs %%meta as its first line\n"
    ),
    "%meta": "UsageError: %meta: nothing was recorded yet; see %meta --help\n",
}


@pytest.mark.parametrize("source", HINTS)
def test_a_line_that_is_not_understood_is_answered_in_words(shell, capsys, source):
    shell.run_cell(source)
    assert HINTS[source] in capsys.readouterr().err


def test_a_name_that_the_cell_does_not_have_is_told_in_text(shell):
    with capture_output() as captured:
        shell.run_cell("%%meta --dims rwos -p rwos=2..4\nrows = 3\ntorch.ones(rows)")
    text = "".join(output.data["text/plain"] for output in captured.outputs)
    unknown = "no name 'rwos' for a positive integer; it has rows; did you mean 'rows'?"
    assert f"note: no sizes have names: the block has {unknown}" in text
    assert f"note: a slider cannot be moved: the block has {unknown}" in text


def test_help_is_a_command_and_records_nothing(shell, capsys):
    shell.run_cell("%meta help")
    assert "%meta materialize model" in capsys.readouterr().out
    assert "_meta" not in shell.user_ns


def test_the_newest_recording_without_operators_says_what_else_there_is(shell, capsys):
    shell.run_cell("%meta -q 1 + 1")
    shell.run_cell("%meta")
    assert "%meta help lists what there is" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("code", "ends"),
    [
        ("41 + 1;", True),
        ("x = 1\n41 + 1;  # the answer\n\n", True),
        ("41 + 1", False),
        ("print(';')", False),
        ("41 + 1  # ;", False),
        ("", False),
        ("'''", False),
    ],
)
def test_the_last_token_of_code_is_what_counts(code, ends):
    assert ends_with_semicolon(code) is ends


def test_a_silenced_magic_returns_nothing_of_a_line_and_of_a_cell():
    silenced = silence_at_semicolon(lambda magics, line, cell=None: 42)
    assert silenced(None, "41 + 1") == 42
    assert silenced(None, "41 + 1;") is None
    assert silenced(None, "-q;", "41 + 1") == 42
    assert silenced(None, "", "41 + 1;") is None


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


@pytest.mark.parametrize("number", [0, 99])
def test_a_number_that_no_repair_has_is_refused(run, failed, number):
    error, _ = run(f"%meta repair {number}")
    assert isinstance(error, UsageError)
    expected = f"%meta repair {number}: the repairs that ran are 1 to {len(failed)}"
    assert str(error) == expected


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
def test_a_front_end_is_asked_to_make_a_cell(kernel):
    kernel.run(FAILS)
    (payload,) = kernel.run("%meta repair").content["payload"]
    assert payload["source"] == "set_next_input"
    assert payload["text"].startswith("%%meta -o trace\nx = torch.ones(")
    assert payload["replace"] is False


def test_a_check_may_name_the_batch(shell):
    shell.run_cell("import torch\nmodel = torch.nn.Softmax(0)\nB = 4")
    for cell in (
        "%%meta -q --check batch=B\nx = torch.ones(B, 3)\ny = model(x)",
        "%meta -q --check batch=B y = model(torch.ones(B, 3))",
    ):
        assert shell.run_cell(cell).success
        notes = [n.text for n in shell.user_ns["_meta"].notes if n.kind == "samples"]
        assert len(notes) == 1
        assert notes[0].startswith("softmax mixes samples of the batch")
