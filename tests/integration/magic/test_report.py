"""What a ``%%meta`` cell shows: one report, harmless whatever the names are."""

import re

import pytest

SCRIPT = "<img src=x onerror=alert(1)>"


def report(shell) -> dict[str, str]:
    (output,) = shell.display_pub.outputs
    return output["data"]


def test_the_text_is_what_print_shows_of_the_trace(shell):
    shell.run_cell("%%meta\nmodel = nn.Linear(2, 3)")
    assert report(shell)["text/plain"] == str(shell.user_ns["_meta"])


@pytest.mark.parametrize(
    "cell",
    [
        f"model = type('{SCRIPT}', (nn.Linear,), {{}})(2, 3)",
        f"model = nn.Module()\nmodel.add_module('{SCRIPT}', nn.Linear(2, 3))",
        f"model = nn.Linear(2, 3)\nsetattr(model, '{SCRIPT}', torch.ones(2))",
        (
            f"import threading\nthread = threading.Thread(name='{SCRIPT}', "
            "target=lambda: torch.ones(1))\nthread.start()\nthread.join()"
        ),
        f"globals()['{SCRIPT}'] = nn.Linear(2, 3)",
        f"type('{SCRIPT}', (nn.Linear,), {{}})(2, 3)(torch.ones(5))",  # is explained
    ],
)
def test_a_hostile_name_is_shown_and_not_executed(shell, cell):
    shell.run_cell(f"%%meta\n{cell}")
    html = shell.display_pub.outputs[0]["data"]["text/html"]
    assert "<img" not in html
    assert "&lt;img src=x onerror=alert(1)&gt;" in html


def test_quiet_keeps_the_trace(shell):
    shell.run_cell("%%meta --quiet\ntorch.ones(2)")
    assert len(shell.user_ns["_meta"].ops) == 1


def test_a_quiet_cell_that_fails_shows_no_report(shell):
    shell.run_cell("%%meta -q\n1 / 0")
    assert shell.display_pub.outputs == []


def test_nested_cells_show_one_report_each(shell):
    shell.run_cell("%%meta\n%%meta\ntorch.ones(2)")
    assert len(shell.display_pub.outputs) == 2


def test_no_progress_line_is_written_where_nobody_looks(shell, capsys):
    # Standard error is no terminal here.
    shell.run_cell("%%meta\nimport time\ntime.sleep(1.2)")
    assert capsys.readouterr().err == ""


# ``%time`` and ``%%time`` in a recorded cell


TIMES = r"CPU times: user .*, sys: .*, total: .*\nWall time: .*\n"

TIMED = {
    "a cell": ("%%meta\n%%time\nx = 3\nx + 1", 1, 4),
    "a cell that awaits": (
        "%%meta\n%%time\nimport asyncio\nawait asyncio.sleep(0)\n4",
        1,
        4,
    ),
    "an expression": ("%%meta\n%time 3 + 1", 1, 4),
    "a statement": ("%%meta\n%time x = 4\nx", 1, 4),
    "what is assigned": ("%%meta\nx = %time 4\nx", 1, 4),
    "a loop": ("%%meta\n%time for x in range(5): pass\nx", 1, 4),
    "in a loop": ("%%meta\nfor x in range(5):\n    %time x\nx", 5, 4),
    "in a function": (
        "%%meta\ndef f(x):\n    %time y = x + 1\n    return y\nf(3)",
        1,
        4,
    ),
    "with an option": ("%%meta\n%time --no-raise-error 1 / 0\n4", 1, 4),
    "beyond ASCII": ("%%meta\nä, x = 1, 2\nö = %time ä + x\nö + 1", 1, 4),
    "several statements": ("%%meta\n%time x = 1; y = 3\nx + y", 1, 4),
    "a string": ("%%meta\nx = '''\n%time 1\n'''\nlen(x) - 5", 0, 4),
}


@pytest.mark.parametrize("name", TIMED)
def test_it_prints_the_times_and_has_the_value(shell, capsys, name):
    cell, n_timed, value = TIMED[name]
    assert shell.run_cell(cell).result == value
    assert len(re.findall(TIMES, capsys.readouterr().out)) == n_timed


@pytest.mark.parametrize("magic", ["%%time\n", "%time "])
def test_what_fails_gets_repairs(shell, magic):
    shell.run_cell("import torch\nlayer = torch.nn.Linear(3, 4)", store_history=True)
    shell.run_cell(f"%%meta\n{magic}y = layer(torch.ones(2, 5))")
    repairs = shell.user_ns["_meta"].explanation.repairs
    assert any("Linear(5, 4)" in one.after for one in repairs)
