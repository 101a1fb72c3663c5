"""``%time`` and ``%%time`` in a recorded cell."""

import re

import pytest

TIMES = r"CPU times: user .*, sys: .*, total: .*\nWall time: .*\n"

TIMED = {
    "a cell": ("%%meta\n%%time\nx = 3\nx + 1", 1, 4),
    "a cell that awaits": (
        "%%meta\n%%time\nimport asyncio\nawait asyncio.sleep(0)\n4",
        *(1, 4),
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
