"""The report in the real JupyterLab: its views, one selection, and what is saved."""

import pytest

from tests.browser.lab import CHANGE, RUN
from tests.browser.served import show

LOAD = "%load_ext meta_magic\nimport torch\nfrom torch import nn"
BLOCK = """class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x):
        return x + self.linear(x).relu()
"""
MODEL = """%%meta
model = nn.Sequential(*(Block() for _ in range(12)), nn.Linear(8, 2))
y = model(torch.zeros(3, 8))
"""
SAVE = "() => jupyterapp.commands.execute('docmanager:save')"
WAIT = 60_000


@pytest.fixture(scope="module")
def opened(open_shared_notebook):
    """A notebook whose first cell ran."""
    page = open_shared_notebook("report.ipynb", f"{LOAD}\n{BLOCK}", MODEL, "pass")
    page.evaluate(RUN, 0)
    return page


@pytest.fixture
def run_cell(opened, expect):
    """Give the second cell another source, and run it; the page."""
    opened.errors.clear()
    opened.logged.clear()

    def change_and_run(source):
        opened.evaluate(CHANGE, [1, source])
        expect(opened.locator(".mm-root")).to_have_count(0)
        opened.evaluate(f"() => {{ ({RUN})(1) }}")
        return opened

    return change_and_run


@pytest.fixture
def report(run_cell, expect):
    """The live report of a model of twelve blocks, in the page ``report.page``."""
    live = run_cell(MODEL).locator(".mm-live:not(.mm-root)")
    expect(live).to_be_visible(timeout=WAIT)
    return live


def test_the_live_report_stands_in_the_place_of_the_saved_one(report, expect):
    assert report.page.locator(".mm-root").count() == 1
    expect(report.page.locator(".mm-root")).to_be_hidden()
    expect(report.locator("header")).to_contain_text("parameters")
    assert (report.page.errors, report.page.logged) == ([], [])


def test_a_folded_run_is_opened_by_keyboard(report, expect):
    pane = show(report, "Modules")
    grid = pane.get_by_role("treegrid")
    grid.focus()
    page = report.page
    page.keyboard.press("Home")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowRight")
    expect(pane.get_by_role("row").filter(has_text="linear").first).to_be_visible()
    page.keyboard.press("d")
    page.keyboard.press("d")
    expect(page.locator(".jp-CodeCell")).to_have_count(3)


def test_a_filter_finds_a_module_by_its_class(report, expect):
    pane = show(report, "Modules")
    pane.get_by_role("searchbox").fill("linear")
    expect(pane.get_by_role("row").filter(has_text="Linear").first).to_be_visible()
    pane.get_by_role("searchbox").fill("no such module")
    expect(pane.get_by_role("row").filter(has_text="Linear")).to_have_count(0)


def test_one_selection_is_followed_through_all_views(report, expect):
    operators = show(report, "Operators")
    operators.get_by_role("searchbox").fill("op:relu")
    operators.get_by_role("row").filter(has_text="aten.relu").first.click()
    expect(operators.locator(".mm-selected")).to_have_count(1)
    modules = show(report, "Modules")
    expect(modules.locator(".mm-selected")).to_contain_text("Block")
    flow = show(report, "Flow")
    expect(flow.locator(".mm-selected").first).to_contain_text("relu")
    source = show(report, "Source")
    expect(source.locator(".mm-selected").first).to_be_visible()
    assert (report.page.errors, report.page.logged) == ([], [])


def test_the_flow_is_opened_and_closed_level_by_level(report, expect):
    flow = show(report, "Flow")
    levels = flow.get_by_label("Open levels")
    expect(levels).to_have_text("3 of 3")
    expect(flow.get_by_role("treeitem", name="linear: Linear")).to_have_attribute(
        "aria-expanded", "false"
    )
    flow.get_by_label("Open a level").click()
    expect(levels).to_have_text("functions")
    steps = flow.get_by_role("treeitem", name="linear", exact=True)
    expect(steps.first).to_be_visible()
    expect(flow.get_by_role("treeitem", name="addmm")).to_have_count(0)
    flow.get_by_label("Open a level").click()
    expect(levels).to_have_text("operators")
    expect(flow.get_by_role("treeitem", name="addmm").first).to_be_visible()
    flow.get_by_label("Close a level").click()
    flow.get_by_label("Close a level").click()
    expect(levels).to_have_text("3 of 3")
    expect(flow.get_by_role("treeitem", name="addmm")).to_have_count(0)


def test_a_box_that_the_flow_is_within_is_named_and_found_again(report, expect):
    flow = show(report, "Flow")
    crumbs = flow.get_by_label("Boxes round the view")
    expect(crumbs.get_by_role("button")).to_have_count(0)
    for _ in range(6):
        flow.get_by_label("Zoom in").click()
    crumb = crumbs.get_by_role("button").first
    expect(crumb).to_have_text("model: Sequential")
    crumb.click()
    expect(crumbs.get_by_role("button")).to_have_count(0)
    expect(flow.get_by_role("treeitem", name="model: Sequential")).to_be_visible()


def test_a_line_of_the_source_shows_the_shapes_it_made(report, expect):
    source = show(report, "Source")
    line = source.locator(".mm-source-line, [data-line]").filter(has_text="y = model")
    expect(line.first).to_contain_text("(3, 2)")


def test_reruns_leave_one_live_report(report, expect):
    page = report.page
    for _ in range(6):
        page.evaluate(RUN, 1)
    expect(page.locator(".mm-live:not(.mm-root)")).to_have_count(1, timeout=WAIT)
    expect(page.locator(".mm-root")).to_have_count(1)
    assert page.errors == []


def test_a_failed_cell_shows_what_ran(run_cell, expect):
    page = run_cell("%%meta\ntorch.ones(2) @ torch.ones(3, 4)")
    rule = "dimension 0 of torch.ones(2) (2) must equal"
    expect(page.locator(".mm-why").first).to_contain_text(rule, timeout=WAIT)
    live = page.locator(".mm-live:not(.mm-root)").last
    live.get_by_text("Recording: 3 operators up to line 2").click()
    expect(live).to_contain_text("stopped by RuntimeError")
    expect(live.get_by_role("row").filter(has_text="aten.ones")).to_have_count(2)
    assert page.errors == []


# The last one, because it ends the kernel.
def test_the_saved_notebook_shows_the_report_without_a_kernel(report, expect):
    page = report.page
    page.evaluate(SAVE)
    page.evaluate(
        "async () => { const c = jupyterapp.shell.currentWidget.sessionContext;"
        " await c.shutdown(); }"
    )
    url = page.url
    page.goto("about:blank")
    page.goto(url.split("?")[0])
    saved = page.locator(".mm-root")
    expect(saved.locator("header")).to_contain_text("parameters", timeout=WAIT)
    saved.get_by_role("tab", name="Flow").click()
    expect(saved.get_by_role("treeitem").first).to_be_visible()
    expect(page.get_by_text("Error displaying widget")).to_be_hidden()
    assert page.errors == []
