"""The report in the real JupyterLab."""

import pytest
from torch import nn

from meta_magic import record

CELLS = (
    "%load_ext meta_magic\nimport torch\nfrom torch import nn",
    """%%meta
model = nn.Sequential(*(nn.Linear(8, 8) for _ in range(12)))
model(torch.ones(2, 8)).shape""",
)

RUN_ALL = "() => jupyterapp.commands.execute('notebook:run-all-cells')"


@pytest.fixture
def notebook(open_notebook):
    """The page of a notebook whose cells have run."""
    page = open_notebook("book.ipynb", *CELLS)
    page.evaluate(RUN_ALL)
    return page


def test_where_scripts_are_forbidden_the_folded_tree_opens(browser, tmp_path):
    from playwright.sync_api import expect

    with record() as trace:
        model = nn.Sequential(*(nn.Linear(8, 8) for _ in range(12)))
    trace.to_html(tmp_path / "report.html")
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto((tmp_path / "report.html").as_uri())
    report = page.locator(".mm-report")
    expect(report.locator("p")).to_contain_text("864 parameters, 3.4 KiB")
    run = report.get_by_text("0-11: 12 x Linear")
    expect(run).to_be_visible()
    report.get_by_text("model: 12 x Linear").click()
    expect(run).to_be_hidden()
    report.locator("summary").first.press("Enter")
    expect(run).to_be_visible()
    assert model[0].weight.is_meta
    context.close()


def test_the_value_of_the_last_expression_stands_below_the_report(notebook):
    from playwright.sync_api import expect

    outputs = notebook.locator(".jp-CodeCell").nth(1).locator(".jp-OutputArea-output")
    expect(outputs.nth(2)).to_contain_text("torch.Size([2, 8])", timeout=60_000)
