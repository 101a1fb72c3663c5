"""Explanations and repairs of a cell whose mistake is in an earlier cell or a file."""

import re
import sys
from itertools import count
from textwrap import dedent

import pytest

DEFINED = dedent("""
    import torch
    from torch import nn


    class Net(nn.Module):
        def __init__(self, width):
            super().__init__()
            self.conv = nn.Conv2d(3, width, 3)
            # the head
            self.fc = nn.Linear(400, 10)

        def forward(self, x):
            return self.fc(self.conv(x).flatten(1))
""").strip()

BUILT = "%%meta -q\nmodel = Net(16)\nx = torch.randn(2, 3, 8, 8)"
FAILS = "%%meta -q\n\ny = model(x).sum()"
HEAD = 10
"""Line of the head in the definitions."""

NUMBERS = count()


@pytest.fixture
def notebook(shell):
    """Runs cells as a notebook does, and returns the explanation of the last."""

    def run_cells(*cells):
        for cell in cells:
            shell.run_cell(cell, store_history=True)
        return shell.user_ns["_meta"].explanation

    return run_cells


def name_before(shell, n_back):
    """Return the name of the cell that ran so many cells before the newest."""
    return f"In[{shell.execution_count - 1 - n_back}]"


def find_linear(found):
    """Return the number of the repair that changes the linear layer."""
    return next(n for n, one in enumerate(found.repairs, 1) if "Linear(" in one.after)


def test_a_size_is_followed_into_an_earlier_cell(shell, notebook):
    found = notebook(DEFINED, BUILT, FAILS)
    first, second = name_before(shell, 2), name_before(shell, 1)
    assert found.line == 3
    assert f"why 400 = fc.in_features, written ({first}, line {HEAD})" in found.text
    assert f"16 = conv.out_channels, written ({second}, line 2)" in found.text
    assert "ipython-input" not in found.text
    assert (first, HEAD) in found.culprits_before
    assert (second, 2) in found.culprits_before


def test_a_repair_of_an_earlier_cell_is_put_into_a_cell_that_runs(shell, notebook):
    found = notebook(DEFINED, BUILT, FAILS)
    number = find_linear(found)
    repair = found.repairs[number - 1]
    assert (repair.cell, repair.line) == (name_before(shell, 2), HEAD)
    assert f"{repair.cell}, line {HEAD}  self.fc = nn.Linear(400, 10)" in found.text
    shell.run_cell(f"%meta repair {number}")
    typed = shell.rl_next_input
    assert typed.startswith("%%meta -q\nimport torch")
    assert "        # the head\n" in typed
    assert typed.endswith("\n\ny = model(x).sum()")
    assert typed.count("%%meta") == 1
    assert notebook(typed) is None
    assert shell.user_ns["y"].shape == ()


def test_the_newest_definition_counts(shell, notebook):
    other = DEFINED.replace("(400, 10)", "(300, 10)")
    found = notebook(DEFINED, BUILT, other, BUILT, FAILS)
    assert f"why 300 = fc.in_features, written ({name_before(shell, 2)}" in found.text


def test_a_deleted_name_and_cells_out_of_order_are_no_matter(shell, notebook):
    wide = "width = 16"
    found = notebook(wide, DEFINED, BUILT.replace("16", "width"), "del width", FAILS)
    assert f"16 = width, written ({name_before(shell, 4)}, line 1)" in found.text


def test_what_reads_a_file_is_taken_as_it_is(shell, notebook, tmp_path):
    (tmp_path / "width.txt").write_text("16")
    read = f"width = int(open({str(tmp_path / 'width.txt')!r}).read())"
    found = notebook(DEFINED, read, BUILT.replace("16", "width"), FAILS)
    assert f"why 400 = fc.in_features, written ({name_before(shell, 3)}" in found.text
    assert name_before(shell, 2) not in found.text
    assert "used as it is, not made again: width" in found.text


def test_a_model_that_is_taken_as_it_is_names_the_cell_of_its_class(
    shell, notebook, tmp_path
):
    (tmp_path / "width.txt").write_text("16")
    width = f"int(open({str(tmp_path / 'width.txt')!r}).read())"
    found = notebook(DEFINED, BUILT.replace("16", width), FAILS)
    assert found.where == f"{name_before(shell, 2)}, line {HEAD + 3}"
    assert "ipython-input" not in found.text


@pytest.mark.parametrize("magic", ["%%time\n", "\n%%time\n%%capture\n", ""])
def test_magics_around_a_definition_are_no_matter(shell, notebook, magic):
    found = notebook(magic + DEFINED, BUILT, FAILS)
    cell, line = name_before(shell, 2), HEAD + magic.count("\n")
    assert f"written ({cell}, line {line})" in found.text


def test_a_cell_that_failed_is_left_out(shell, notebook):
    found = notebook(DEFINED, BUILT, "x = torch.ones(2, 3, 9, 9)\n1 / 0", FAILS)
    assert name_before(shell, 1) not in found.text


@pytest.fixture
def module(tmp_path, monkeypatch):
    """The name of a module with the definitions, in the working directory."""
    name = f"defined_{next(NUMBERS)}"
    (tmp_path / "nets").mkdir()
    (tmp_path / "nets" / "__init__.py").write_text("")
    (tmp_path / "nets" / f"{name}.py").write_text(DEFINED + "\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield name
    for one in ("nets", f"nets.{name}"):
        sys.modules.pop(one, None)


@pytest.fixture
def found(module, notebook):
    """The explanation of a failure of a model from a file."""
    return notebook(f"import torch\nfrom nets.{module} import Net", BUILT, FAILS)


def test_a_size_is_followed_into_a_file(module, found):
    assert f"why 400 = fc.in_features, written (nets/{module}.py, line {HEAD})" in (
        found.text
    )


def test_a_file_is_repaired_only_when_asked(shell, module, found, tmp_path, capsys):
    path = tmp_path / "nets" / f"{module}.py"
    number = find_linear(found)
    shell.run_cell(f"%meta repair {number}")
    shown = capsys.readouterr().out
    assert f"nets/{module}.py" in shown
    assert "-        self.fc = nn.Linear(400, 10)" in shown
    assert path.read_text() == DEFINED + "\n"
    shell.run_cell(f"%meta repair {number} --write")
    changed = path.read_text()
    assert re.sub(r"Linear\(400, 10\)", "", DEFINED + "\n") == re.sub(
        r"Linear\(\d+, \d+\)", "", changed
    )
    assert changed != DEFINED + "\n"
    shell.run_cell(shell.rl_next_input, store_history=True)
    assert shell.user_ns["_meta"].error is None


def test_a_file_keeps_its_encoding_and_ends_of_lines(shell, module, notebook, tmp_path):
    path = tmp_path / "nets" / f"{module}.py"
    text = f"# -*- coding: latin-1 -*-\n# \xe9\n{DEFINED}\n".replace("\n", "\r\n")
    path.write_bytes(text.encode("latin-1"))
    found = notebook(f"import torch\nfrom nets.{module} import Net", BUILT, FAILS)
    number = find_linear(found)
    shell.run_cell(f"%meta repair {number} --write")
    old, new = "nn.Linear(400, 10)", found.repairs[number - 1].after.split(" = ")[1]
    assert path.read_bytes() == text.replace(old, new).encode("latin-1")


def test_a_file_that_was_changed_since_is_not_written(
    shell, module, found, tmp_path, capsys
):
    path = tmp_path / "nets" / f"{module}.py"
    path.write_text("# mine\n" + DEFINED)
    number = next(n for n, one in enumerate(found.repairs, 1) if one.path)
    shell.run_cell(f"%meta repair {number} --write")
    assert "was changed meanwhile" in capsys.readouterr().err
    assert path.read_text() == "# mine\n" + DEFINED
