"""The line of ``%%meta`` and ``%meta``: options, help, configuration."""

import pytest
from IPython.utils.capture import capture_output

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
]


@pytest.mark.parametrize("line", BAD_LINES)
def test_a_bad_line_is_refused_in_one_line(shell, capsys, line):
    result = shell.run_cell(f"%%meta {line}\nran = 1")
    error = capsys.readouterr().err
    assert not result.success
    assert error.startswith("UsageError: ")
    assert error.count("\n") == 1


@pytest.mark.parametrize("line", BAD_LINES)
def test_under_a_bad_line_nothing_runs(shell, line):
    shell.run_cell(f"%%meta {line}\nran = 1")
    assert not {"ran", "_meta"} & shell.user_ns.keys()


@pytest.mark.parametrize("line", BAD_LINES)
def test_under_a_bad_line_nothing_is_awaited(shell, capsys, line):
    shell.run_cell(f"%%meta {line}\nimport asyncio\nawait asyncio.sleep(0)\nran = 1")
    assert not {"ran", "_meta"} & shell.user_ns.keys()
    assert capsys.readouterr().err.startswith("UsageError: ")


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


def test_braces_and_dollars_on_the_line_are_not_expanded(shell, capsys):
    shell.user_ns["name"] = "kept"
    shell.run_cell("%%meta -o {name}\n1")
    assert "'{name}' is none" in capsys.readouterr().err


def test_an_assumption_that_is_not_known_is_answered_with_the_list(shell, capsys):
    shell.run_cell("%%meta --assume routing=random\n1")
    assert "'routing=random' is no known assumption; these are: nonzero=all, " in (
        capsys.readouterr().err
    )


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


def test_values_that_nobody_knows_are_checked_where_that_is_chosen(shell):
    cell = "nn.Embedding(10, 4)(torch.ones(3, 3).sum(1).long() + 7)"
    assert shell.run_cell(f"%%meta -q\n{cell}").success
    result = shell.run_cell(f"%%meta -q --check-values\n{cell}")
    assert str(result.error_in_exec) == "index out of range in self"


# %meta


def test_meta_runs_a_statement_and_has_its_value(shell):
    result = shell.run_cell("%meta torch.ones(3, 4).sum(0)").result
    assert result.is_meta
    assert result.shape == (4,)


def test_meta_can_be_assigned_from(shell):
    shell.run_cell("y = %meta torch.ones(3)")
    assert shell.user_ns["y"].is_meta


@pytest.mark.parametrize("line", ["-o kept -q", "-q -o kept", "-q  --out=kept "])
def test_meta_takes_options_before_the_statement(shell, line):
    shell.run_cell(f"%meta {line} x = torch.ones(2)")
    assert shell.user_ns["x"].is_meta
    assert len(shell.user_ns["kept"].ops) == 1
    assert shell.display_pub.outputs == []


@pytest.mark.parametrize("statement", ["text = 'a  b'", "text = 'a' +  '  b'"])
def test_meta_leaves_the_spaces_of_the_statement(shell, statement):
    shell.run_cell(f"%meta -q {statement}")
    assert shell.user_ns["text"] == "a  b"


def test_meta_without_a_statement_prints_the_newest_trace(shell, capsys):
    shell.run_cell("%%meta -q\nmodel = nn.Linear(2, 3)")
    shell.run_cell("%meta")
    assert capsys.readouterr().out == f"{shell.user_ns['_meta']}\n"


def test_meta_without_a_trace_says_how_to_begin(shell, capsys):
    shell.run_cell("%meta")
    assert capsys.readouterr().err == (
        "UsageError: %meta: nothing was recorded yet; see %meta --help\n"
    )


def test_a_statement_that_awaits_is_refused_in_one_line(shell, capsys):
    shell.run_cell("%meta await f()")
    assert capsys.readouterr().err == (
        "UsageError: %%meta: a cell that awaits needs %%meta as its first line\n"
    )


def test_an_error_of_a_statement_is_shown_without_our_frames(shell, capsys):
    shell.run_cell("x = 1\n%meta 1 / 0")
    shown = capsys.readouterr().out
    assert "ZeroDivisionError" in shown
    assert "meta_magic/" not in shown


# Configuration.


def test_quiet_can_be_set_for_a_session(shell):
    shell.run_cell("%config MetaMagics.quiet = True")
    shell.run_cell("%%meta\ntorch.ones(2)")
    assert shell.display_pub.outputs == []


def test_quiet_can_be_set_in_a_configuration_file(shell):
    shell.run_cell("%unload_ext meta_magic")
    shell.config.MetaMagics.quiet = True
    shell.run_cell("%load_ext meta_magic\n")
    shell.run_cell("%%meta\ntorch.ones(2)")
    assert shell.display_pub.outputs == []


def test_config_shows_the_traits(shell, capsys):
    shell.run_cell("%config MetaMagics")
    assert "MetaMagics.quiet=<Bool>" in capsys.readouterr().out


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
    "%meta repare 1": "did you mean repair? %meta help lists what there is",
    "%%meta --quite\n1": "did you mean --quiet? %meta --help lists what there is",
    "%%meta --foo\n1": "--foo (%meta --help lists what there is)",
    "%%meta stray\n1": "stray (%meta --help lists what there is)",
}


@pytest.mark.parametrize("source", HINTS)
def test_a_word_that_is_not_known_is_answered_with_the_nearest(shell, capsys, source):
    shell.run_cell(source)
    assert HINTS[source] in capsys.readouterr().err


def test_help_is_a_command_and_records_nothing(shell, capsys):
    shell.run_cell("%meta help")
    assert "%meta materialize model" in capsys.readouterr().out
    assert "_meta" not in shell.user_ns


def test_the_newest_recording_without_operators_says_what_else_there_is(shell, capsys):
    shell.run_cell("%meta -q 1 + 1")
    shell.run_cell("%meta")
    assert "%meta help lists what there is" in capsys.readouterr().out
