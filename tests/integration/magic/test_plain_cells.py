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


OPTIMIZER = """\
y.sum().backward()
held = torch.optim.AdamW(model.parameters(), lr=torch.tensor(0.1))
"""


@pytest.mark.parametrize(
    ("made", "cell"),
    [
        ("held = {'x': y, 'n': 3}", "held['x'].tolist()"),
        ("held = types.SimpleNamespace(parts=[y])", "held.parts[0].tolist()"),
        (OPTIMIZER, "held.step()"),
    ],
)
def test_a_plain_cell_that_reads_what_a_variable_holds_shows_what_to_do(
    run, made, cell
):
    (line,) = run(f"%%meta -q\nimport types\n{made}\nNone", cell)
    assert line.startswith("meta_magic: `held`, which was made under %%meta in In[")
    assert line.endswith("put %%meta on this cell")


def test_a_plain_cell_that_makes_a_tensor_without_values_says_so(run):
    (line,) = run("import math\nv = model(y.mT.new_ones(3, 4))")
    assert line.startswith(
        "meta_magic: `v` has no values: line 2 made it without %%meta"
    )
    assert "from `model`, which was made under %%meta in In[" in line


BLOCK = """\
class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.act = torch.nn.Linear(4, 2), torch.nn.ReLU()
        self.second = torch.nn.Linear(5, 1)
    def forward(self, x):
        return self.second(self.act(self.first(x)))
"""


@pytest.mark.parametrize(
    ("call", "layer", "n_cells", "line"),
    [
        ("block(torch.ones(3, 4, device='meta'))", "block.second", 3, 5),
        ("model(x.T)", "model", 4, 2),
    ],
)
def test_a_layer_that_refuses_sizes_in_a_plain_cell_is_named_with_the_line_that_made_it(
    run, shell, call, layer, n_cells, line
):
    (shown,) = run(BLOCK, "%%meta -q\nblock = Block()", call)
    assert shown == (
        f"meta_magic: `{layer}`, which was made under %%meta in "
        f"In[{shell.execution_count - n_cells}], line {line}: "
        "put %%meta on this cell to see why its call is refused"
    )


@pytest.mark.parametrize(
    "cell",
    [
        "x.sum().item()",
        "torch.ones(2, device='meta').tolist()",
        "z = torch.ones(2, device='meta')",
        "y.shape, model",
        "1 / 0; model",
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


# Data and models of earlier, real cells in a ``%%meta`` cell; values as for real


DATA = """
import numpy as np, pandas as pd
from torch.utils.data import DataLoader, TensorDataset
frame = pd.DataFrame({"a": np.linspace(0, 1, 40), "b": np.linspace(1, 0, 40) ** 2})
frame["y"] = frame.a - 2 * frame.b
X = torch.tensor(frame[["a", "b"]].values, dtype=torch.float32)
y = torch.tensor(frame.y.values, dtype=torch.float32).unsqueeze(1)
loader = DataLoader(TensorDataset(X, y), batch_size=8, shuffle=True)

def build():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(2, 8), nn.ReLU(), nn.BatchNorm1d(8), nn.Dropout(0.1), nn.Linear(8, 1)
    )

model = build()
"""

TRAIN = """
torch.manual_seed(1)
model.train()
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for epoch in range(2):
    for xb, yb in loader:
        xb, yb = xb.to(device), yb.to(device)
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(xb), yb)
        loss.backward()
        optimizer.step()
    print(epoch, loss.item())
model.eval()
with torch.no_grad():
    print(((model(X.to(device)) - y.to(device)) ** 2).mean().item())
"""

CELLS = {
    "a model of the cell": "device = 'cpu'\nmodel = build().to(device)\n" + TRAIN,
    "a model of an earlier cell": "device = 'cpu'\nmodel.to(device)\n" + TRAIN,
    "across awaits": "import asyncio\ndevice = 'cpu'\n"
    + TRAIN.replace("optimizer.step()", "optimizer.step(); await asyncio.sleep(0)"),
    "by hand": """
torch.manual_seed(1)
w, b = torch.randn(2, 1, requires_grad=True), torch.zeros(1, requires_grad=True)
for step in range(3):
    loss = ((X @ w + b - y) ** 2).mean()
    loss.backward()
    with torch.no_grad():
        for p in (w, b):
            p -= 0.1 * p.grad
            p.grad.zero_()
    print(step, loss.item())
""",
}  # fmt: skip


@pytest.mark.parametrize("name", CELLS)
def test_a_cell_on_data_of_earlier_cells_prints_what_it_prints_for_real(
    shell, capsys, name
):
    shell.run_cell(DATA)
    before = {k: v.clone() for k, v in shell.user_ns["model"].state_dict().items()}
    capsys.readouterr()
    shell.run_cell("%%meta -q\n" + CELLS[name]).raise_error()
    shown = capsys.readouterr().out
    if "build()" not in CELLS[name]:
        after = shell.user_ns["model"].state_dict()
        assert all(v.equal(before[k]) for k, v in after.items())
    shell.run_cell(CELLS[name]).raise_error()
    assert shown == capsys.readouterr().out


def test_a_gpu_script_on_a_real_model_leaves_it_where_it_was(shell):
    shell.run_cell(DATA)
    shell.run_cell("%%meta -q --as cuda\ndevice = 'cuda'\nmodel.to(device)" + TRAIN)
    assert {p.device.type for p in shell.user_ns["model"].parameters()} == {"cpu"}
    assert shell.user_ns["_meta"].error is None
