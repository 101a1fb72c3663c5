"""Explanations and repairs of a cell whose mistake is in an earlier cell or a file."""

import os
import re
import sys
from itertools import count
from textwrap import dedent

import pytest
import torch

from meta_magic.errors import TrialError

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


def test_a_later_line_may_print(notebook):
    found = notebook(DEFINED, BUILT, f"{FAILS}\nprint(y.shape)")
    assert found.repairs
    assert "then line" not in found.text


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


@pytest.mark.parametrize("head", ["", "%%meta -q\n"])
def test_a_cell_that_failed_counts_up_to_the_line_that_raised(shell, notebook, head):
    failed = f"{head}side = 9\nx = torch.ones(2, 3, side, 9)\n1 / 0\nside = 8"
    found = notebook(DEFINED, BUILT, failed, FAILS)
    line = 1 + head.count("\n")
    assert "(2, 784)" in found.text
    assert f"9 = side, written ({name_before(shell, 1)}, line {line})" in found.text


def test_a_loaded_tensor_that_changed_later_is_not_changed_twice(
    shell, notebook, tmp_path
):
    path = str(tmp_path / "x.pt")
    torch.save(torch.ones(2, 3, 4, 4), path)
    read = f"x = torch.load({path!r})"
    found = notebook(DEFINED, BUILT, read, "x = x.repeat(1, 1, 2, 2)", FAILS)
    assert "(2, 576)" in found.text
    assert "used as it is, not made again: x" in found.text
    assert "400 = fc.in_features, written" in found.text


@pytest.mark.parametrize(
    "made", ["exec('width = 16')", "from math import *\nwidth = int(pi) + 13"]
)
def test_what_no_statement_binds_is_used_as_it_is(shell, notebook, made):
    found = notebook(DEFINED, made, BUILT.replace("16", "width"), FAILS)
    is_hidden = made.startswith("exec")
    assert ("used as it is, not made again: width" in found.text) == is_hidden
    assert "400 = fc.in_features, written" in found.text


SIZES = "width = 12\nbatch = 8"
LAYERS = "model = nn.Sequential(nn.Linear(width, 2 * width), nn.Linear(2 * width, 10))"
RUNS = "%%meta -q\nx = torch.randn(batch, width)\ny = model(x)"


@pytest.fixture(params=["", "%%meta -q\n"], ids=["plain", "recorded"])
def ran(request, shell):
    """The trace of a cell that ran, and the names of the cells before it."""
    for cell in (SIZES, request.param + LAYERS, RUNS):
        shell.run_cell(cell, store_history=True)
    return shell.user_ns["_meta"], name_before(shell, 2), name_before(shell, 1)


def test_why_leads_into_earlier_cells(shell, ran):
    trace, sizes, layers = ran
    line = 1 if shell.user_ns["model"][0].weight.device.type == "cpu" else 2
    assert trace.why(shell.user_ns["y"], 1).lines == (
        f"10 = model[1].out_features, written ({layers}, line {line})",
    )
    assert trace.why(shell.user_ns["x"], 1).lines == (
        f"12 = width, written ({sizes}, line 1)",
    )
    lines = trace.why(shell.user_ns["model"][0].weight, 0).lines
    assert lines[0] == "24 = model[0].out_features = 2 * 12"
    assert lines[2] == f"  12 = width, written ({sizes}, line 1)"


def test_why_names_what_is_used_as_it_is(shell, notebook):
    for cell in ("exec('width = 12')", LAYERS, RUNS.replace("batch", "8")):
        shell.run_cell(cell, store_history=True)
    found = shell.user_ns["_meta"].why(shell.user_ns["x"], 1)
    assert found.lines[0] == "12 = width, from outside of the block"
    assert found.caveat == "used as it is, not made again: width"


def test_fit_varies_a_number_of_an_earlier_cell(ran):
    trace, _, _ = ran
    found = trace.fit("t4", vary={"width": range(4, 10**6, 4)}).sizes["width"]
    for width in (12, 40, found.largest):
        # parameters: 2 w * w and 10 * 2 w weights, 2 w + 10 biases; x, h, y: w, 2 w, 10
        numbers = 2 * width**2 + 20 * width + 2 * width + 10 + 8 * (3 * width + 10)
        assert found.peak_nbytes(width) == 4 * numbers
    assert found.confirmed
    assert 4 * 2 * (found.largest + 40) ** 2 > 16e9 - 2**31


def test_fit_refuses_cells_that_make_something_else(shell):
    once = "import sys\nsys.n_runs = getattr(sys, 'n_runs', 0) + 1"
    many = "width = 12 * sys.n_runs"
    for cell in (once, many, "batch = 8", LAYERS, RUNS):
        shell.run_cell(cell, store_history=True)
    trace = shell.user_ns["_meta"]
    with pytest.raises(TrialError, match="the cells before it do not make the same"):
        trace.fit("t4", vary={"batch": ...})


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
    read_at = path.stat().st_mtime_ns
    shell.run_cell(f"%meta repair {number} --write")
    os.utime(path, ns=(read_at, read_at))  # written within a second of its import
    changed = path.read_text()
    assert re.sub(r"Linear\(400, 10\)", "", DEFINED + "\n") == re.sub(
        r"Linear\(\d+, \d+\)", "", changed
    )
    assert changed != DEFINED + "\n"
    shell.run_cell(shell.rl_next_input, store_history=True)
    assert shell.user_ns["_meta"].error is None


def test_a_file_that_was_changed_since_is_not_written(
    shell, module, found, tmp_path, capsys
):
    path = tmp_path / "nets" / f"{module}.py"
    path.write_text("# mine\n" + DEFINED)
    number = next(n for n, one in enumerate(found.repairs, 1) if one.path)
    shell.run_cell(f"%meta repair {number} --write")
    assert "was changed meanwhile" in capsys.readouterr().err
    assert path.read_text() == "# mine\n" + DEFINED


WIDENS = "from torch import nn\n\n\ndef widen():\n    return nn.Conv2d(16, 32, 3)\n"
NORMALIZES = (
    "%%meta -q\nconv = widen()\nnorm = nn.BatchNorm2d(32)\n"
    "x, skip = torch.ones(2, 16, 8, 8), torch.ones(2, 16, 6, 6)"
)


def test_a_file_and_a_cell_are_repaired_together(
    shell, module, notebook, tmp_path, capsys
):
    path = tmp_path / "nets" / f"{module}.py"
    path.write_text(WIDENS)
    imports = f"import torch\nfrom torch import nn\nfrom nets.{module} import widen"
    found = notebook(imports, NORMALIZES, "%%meta -q\ny = skip + norm(conv(x))")
    number, repair = next(
        (n, one) for n, one in enumerate(found.repairs, 1) if len({*one.cells}) > 1
    )
    assert repair.cells == (f"nets/{module}.py", name_before(shell, 1))
    shell.run_cell(f"%meta repair {number}")
    shown = capsys.readouterr().out
    assert f"{name_before(shell, 1)}\n@@ -3 +3 @@\n-norm = nn.BatchNorm2d(32)" in shown
    assert path.read_text() == WIDENS
    shell.run_cell(f"%meta repair {number} --write")
    assert path.read_text() == WIDENS.replace("16, 32", "16, 16")
    again = shell.rl_next_input
    assert "norm = nn.BatchNorm2d(16)" in again
    shell.run_cell(again, store_history=True)
    assert shell.user_ns["_meta"].error is None
    assert shell.user_ns["y"].shape == (2, 16, 6, 6)
