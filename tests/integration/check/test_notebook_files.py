"""``meta-magic check`` of notebooks."""

import json

import pytest

PYTHON = {"kernelspec": {"language": "python", "name": "python3"}}


@pytest.fixture
def write(tmp_path):
    def write(*cells, metadata=PYTHON, tags=()):
        content = {
            "cells": [
                {
                    "cell_type": "code",
                    "metadata": {"tags": [*tags]},
                    "source": cell.splitlines(keepends=True),
                }
                for cell in cells
            ],
            "metadata": metadata,
            "nbformat": 4,
            "nbformat_minor": 5,
        }
        (tmp_path / "a.ipynb").write_text(json.dumps(content, indent=1))

    return write


def test_cells_are_recorded_in_their_order(check, write):
    write(
        "import torch\nfrom torch import nn",
        "%time model = nn.Linear(4, 5)",
        "%%time\ny = model(torch.zeros(3, 4))",
        "import asyncio\nawait asyncio.sleep(0)\nz = y * 2",
        "!echo hello > out.txt",
        "assert open('out.txt').read() == 'hello\\n' and z.is_meta",
    )
    code, text = check("a.ipynb")
    assert code == 0, text
    # 4 x 5 weights and 5 biases; 2 FLOPs for each of 3 x 5 x 4 multiply-adds.
    assert "cell 3\n  25 parameters, 100 bytes · 3 operators" in text
    assert "120 FLOPs" in text


def test_a_failing_cell_ends_the_notebook_at_its_line(check, write, tmp_path):
    write("import torch", "x = torch.zeros(3, 4)\n\ny = x @ x", "print('never')")
    code, text = check("a.ipynb", "--json")
    recordings = json.loads(text)["checked"][0]["recordings"]
    assert code == 1
    assert [one["name"] for one in recordings] == ["cell 1", "cell 2"]
    found = recordings[1]["findings"][0]
    lines = (tmp_path / "a.ipynb").read_text().splitlines()
    assert "y = x @ x" in lines[found["line"] - 1]
    assert 'File "cell 2", line 3' in recordings[1]["traceback"]
    assert "of x (4)" in recordings[1]["explanation"]


def test_a_failing_cell_is_explained_by_the_cells_before_it(check, write):
    write(
        "import torch\nfrom torch import nn",
        "def call(model, x):\n    return model(x)",
        "model = nn.Linear(4, 5)",
        "call(model, torch.zeros(2, 3))",
    )
    code, text = check("a.ipynb")
    assert code == 1
    assert 'File "In[2]", line 2, in call' in text
    assert "why 4 = model.in_features, written (In[3], line 1)" in text
    assert "<ipython-input" not in text


def test_an_error_is_followed_into_earlier_cells(check, write):
    write(
        "import torch\nfrom torch import nn\nwidth = 12",
        "",
        "model = nn.Linear(width, 2)",
        "model(torch.zeros(3, 11))",
    )
    code, text = check("a.ipynb")
    assert code == 1
    assert "why 12 = width, written (In[1], line 3)" in text
    assert "In[3], line 1  model = nn.Linear(width, 2)" in text


@pytest.mark.parametrize(
    ("cell", "code", "message"),
    [
        ("x = = 3", 1, "SyntaxError"),
        ("%nothing_like_it", 2, "nothing_like_it` not found"),
        ("input('how many? ')", 2, "it asks for input"),
        ("%load_ext meta_magic\n%meta 1 / 0", 1, "ZeroDivisionError"),
        ("import os; os._exit(0)", 2, "ended its process at once"),
    ],
)
def test_what_a_cell_does_decides_the_exit_code(check, write, cell, code, message):
    write("import torch", cell)
    given, text = check("a.ipynb")
    assert given == code, text
    assert message in text


def test_a_cell_that_goes_on_for_ever_is_reported(check_apart, write):
    write("import torch", "while True:\n    torch.zeros(3)")
    code, text = check_apart("a.ipynb", "--timeout", 4)
    assert code == 2
    assert "it took more than 4 s (--timeout)" in text


def test_the_options_of_a_recording_reach_the_cells(check, write):
    write("import torch\ntorch.zeros(3) + 1")
    assert "as on cuda" in check("a.ipynb", "--as", "cuda")[1]
    code, text = check("a.ipynb", "--as", "abacus")
    assert code == 2
    assert "as_device is one of cpu, cuda, meta" in text


def test_a_value_that_takes_too_long_names_an_option_of_the_command(check, write):
    write(
        "import torch\nx = torch.ones(2000, 2000)\nfor _ in range(400):\n    x = x @ x",
        "x.sum().item()",
    )
    code, text = check("a.ipynb", "--timeout", "12")
    assert code == 2
    assert "allow it (--timeout" in text
