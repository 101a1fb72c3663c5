"""Values in the details panel, of a running kernel in the real JupyterLab."""

import torch
from torch import nn

CELLS = (
    "%load_ext meta_magic\nimport torch\nfrom torch import nn",
    """%%meta
torch.manual_seed(0)
model = nn.Linear(8, 8)
y = model(torch.ones(2, 8))""",
)
RUN_ALL = "() => jupyterapp.commands.execute('notebook:run-all-cells')"


def test_the_kernel_shows_the_values_of_a_parameter(open_notebook, expect):
    page = open_notebook("values.ipynb", *CELLS)
    page.evaluate(RUN_ALL)
    report = page.locator(".mm-live:not(.mm-root)")
    grid = report.get_by_role("treegrid")
    grid.wait_for(timeout=60_000)
    grid.get_by_role("row").filter(has_text="Linear").click()
    details = report.get_by_role("group", name="Details")
    details.get_by_role("button", name="(8, 8) f32").first.click()
    details.get_by_role("button", name="Compute values").click()
    torch.manual_seed(0)
    weight = nn.Linear(8, 8).weight.detach()
    status = details.get_by_role("status")
    expect(status).to_contain_text(f"{weight.max().item():.4g}", timeout=60_000)
    expect(status).to_contain_text(f"{weight[0, 0].item():.4g}, ")
    expect(details.get_by_role("img")).to_be_visible()
