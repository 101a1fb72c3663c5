"""Plain cells that use what a recorded cell made, as if it were real."""

import pytest

MODEL = "%%meta -q\nmodel = torch.nn.Linear(4, 2)\ny = model(x)"


@pytest.fixture
def run(shell, capsys):
    """Run cells; return what the last one printed below its traceback or output."""

    def run_cells(*cells):
        for cell in ("import torch\nx = torch.ones(3, 4)", MODEL, *cells):
            capsys.readouterr()
            shell.run_cell(cell, store_history=True)
        lines = capsys.readouterr().out.splitlines()
        return [line for line in lines if line.startswith("meta_magic:")]

    return run_cells


@pytest.mark.parametrize("cell", ["model(x)", "v = model(x)", "model.cpu()"])
def test_a_plain_cell_that_calls_a_recorded_module_shows_what_to_do(run, shell, cell):
    (line,) = run(cell)
    number = shell.execution_count - 2
    assert line == (
        f"meta_magic: `model`, which was made under %%meta in In[{number}], line 2: "
        "put %%meta on this cell, or run %meta materialize model"
    )


@pytest.mark.parametrize(
    "cell", ["y.sum().item()", "y.tolist()", "y.detach().numpy()", "bool(y[0, 0])"]
)
def test_a_plain_cell_that_reads_a_recorded_tensor_shows_what_to_do(run, cell):
    (line,) = run(cell)
    assert line.startswith("meta_magic: `y`, which was made under %%meta in In[")
    assert line.endswith("line 3: put %%meta on this cell")


def test_a_plain_cell_that_makes_a_tensor_without_values_says_so(run):
    (line,) = run("import math\nv = model(y.mT.new_ones(3, 4))")
    assert line.startswith(
        "meta_magic: `v` has no values: line 2 made it without %%meta"
    )
    assert "from `model`, which was made under %%meta in In[" in line


@pytest.mark.parametrize(
    "cell",
    [
        "x.sum().item()",
        "torch.ones(2, device='meta').tolist()",
        "z = torch.ones(2, device='meta')",
        "y.shape, model",
        "1 / 0; model",
        "model(x.T)",
        "raise ValueError('meta')",
        "%%meta -q\nz = model(x)",
        "%%meta -q\ntorch.empty(2).item()\nmodel",
        "%meta model(x)",
        "model(",
        "!true",
    ],
)
def test_other_cells_show_no_hint(run, cell):
    assert run(cell) == []


def test_without_the_extension_no_cell_shows_a_hint(run):
    assert run("%unload_ext meta_magic", "model(x)") == []


def test_a_result_is_shown_in_plain_code_as_one_on_meta(shell):
    # x is real, so that the cell itself shows y as the CPU does.
    shell.run_cell("import torch\nx = torch.ones(3, 4)")
    own = shell.run_cell(f"{MODEL}\ny").result
    formats = shell.display_formatter.format
    assert "device='meta'" not in formats(own)[0]["text/plain"]
    shell.run_cell("1")
    text = formats(shell.user_ns["y"])[0]["text/plain"]
    assert "device='meta'" in text
    assert "..." not in text


def test_a_plain_cell_that_gets_a_recorded_tensor_from_a_cache_names_the_cache(
    run, shell
):
    cached = (
        "import functools\n@functools.cache\ndef table(n):\n    return torch.ones(n)"
    )
    call = "v = table(3) + torch.ones(3)"
    (line,) = run(cached, "%%meta -q\ntable(3)", call)
    assert line.startswith("meta_magic: a cache keeps `table(...)`, which was made ")
    assert line.endswith("run table.cache_clear(), or put %%meta on this cell")
    shell.run_cell("table.cache_clear()")
    shell.run_cell(call)
    assert shell.user_ns["v"].tolist() == [2, 2, 2]
