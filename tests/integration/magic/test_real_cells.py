"""Data and models of earlier, real cells in a ``%%meta`` cell; values as for real."""

import pytest

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
