"""The explanation of a failed cell beside a running kernel, in the real JupyterLab."""

from textwrap import dedent

import pytest

from tests.browser.lab import RUN

CELLS = (
    "%load_ext meta_magic\nimport torch\nfrom torch import nn",
    """%%meta -o trace
batch = 4
x = torch.ones(batch, 3)
y = x @ torch.ones(5, 2)""",
    "after = 1",
)
CELLS_NOW = "jupyterapp.shell.currentWidget.content.model.sharedModel.cells"
READ_CELLS = f"() => {CELLS_NOW}.map((cell) => cell.source)"


@pytest.fixture
def why(show_cells, expect):
    """The explanation of the cell that failed."""
    page = show_cells(*CELLS)
    for number in (0, 1):
        page.evaluate(RUN, number)
    why = page.locator(".mm-live:not(.mm-root) .mm-why")
    expect(why).to_be_visible(timeout=60_000)
    return why


def test_the_kernel_shows_why_a_size_is_what_it_is(why, expect):
    why.get_by_role("button", name="4, dimension 0 of x").click()
    chain = why.locator("details", has_text="why 4: dimension 0 of x")
    expect(chain.locator("li").first).to_contain_text("4 = ", timeout=60_000)
    expect(chain).to_contain_text("line 2")


def test_a_repair_is_put_into_a_new_cell_that_runs(why, expect):
    repair = why.locator("li", has=why.page.locator("pre")).first
    repair.get_by_role("button", name="New cell below").click()
    expect(repair.get_by_role("status")).to_have_text("it is in a new cell below")
    first, failed, repaired, last = why.page.evaluate(READ_CELLS)
    assert (first, failed, last) == CELLS
    assert repaired.startswith("%%meta -o trace\nbatch = 4\n")
    assert repaired != failed
    why.page.evaluate(RUN, 2)
    report = why.page.locator(".jp-CodeCell").nth(2).locator(".mm-live:not(.mm-root)")
    expect(report).to_contain_text("3 operators", timeout=60_000)


def test_the_magic_puts_a_repair_into_a_new_cell(why, expect):
    page = why.page
    page.evaluate(f"() => {{ {CELLS_NOW}[2].source = '%meta repair 1' }}")
    page.evaluate(RUN, 2)
    page.wait_for_function(f"() => ({READ_CELLS})().length === 4", timeout=60_000)
    assert page.evaluate(READ_CELLS)[3].startswith("%%meta -o trace\nbatch = 4\n")


DEFINED = dedent("""
    class Net(nn.Module):
        def __init__(self, width):
            super().__init__()
            self.conv = nn.Conv2d(3, width, 3)
            # the head
            self.fc = nn.Linear(400, 10)

        def forward(self, x):
            return self.fc(self.conv(x).flatten(1))
""").strip()
ACROSS = (
    CELLS[0],
    DEFINED,
    "model = Net(16)\nx = torch.randn(2, 3, 8, 8)",
    "%%meta\ny = model(x).sum()",
)


def test_a_click_mends_a_class_of_an_earlier_cell(show_cells, expect):
    page = show_cells(*ACROSS, in_new_kernel=True)
    for number in range(4):
        page.evaluate(RUN, number)
    failed = page.locator(".jp-CodeCell").nth(3)
    why = failed.locator(".mm-why")
    expect(why).to_be_visible(timeout=60_000)
    repair = why.locator("li", has_text="nn.Linear(576, 10)")
    expect(repair).to_contain_text("In[2], line 6")
    repair.get_by_role("button", name="New cell below").click()
    expect(repair.get_by_role("status")).to_have_text("it is in a new cell below")
    *before, mended = page.evaluate(READ_CELLS)
    assert tuple(before) == ACROSS
    class_mended = DEFINED.replace("nn.Linear(400, 10)", "nn.Linear(576, 10)")
    again = ("%%meta", class_mended + "\n", ACROSS[2] + "\n", "y = model(x).sum()")
    assert mended == "\n".join(again)
    page.evaluate(RUN, 4)
    report = page.locator(".jp-CodeCell").nth(4).locator(".mm-live:not(.mm-root)")
    expect(report).to_contain_text("Linear 576 → 10", timeout=60_000)
    # The cell that failed runs on.
    page.evaluate(RUN, 3)
    report = failed.locator(".mm-live:not(.mm-root)")
    expect(report).to_contain_text("Linear 576 → 10", timeout=60_000)
    expect(failed.locator(".mm-why")).to_have_count(0)
    expect(failed.locator(".jp-OutputArea")).not_to_contain_text("Traceback")


def test_the_recording_of_a_failed_cell_opens_below_its_traceback(why, expect):
    cell = why.page.locator(".jp-CodeCell").nth(1)
    line = cell.locator(".mm-live:not(.mm-root) > details > summary")
    expect(line).to_have_text("Recording: 2 operators up to line 4")
    tops = [
        part.bounding_box()["y"]
        for part in (why, cell.get_by_text("Traceback (most recent call last)"), line)
    ]
    assert tops == sorted(tops)
    expect(cell.get_by_role("tab", name="Source")).to_have_count(0)
    why.get_by_role("button", name="line 4", exact=True).first.click()
    source = cell.get_by_role("tabpanel", name="Source")
    expect(source.locator(".mm-source-line.mm-selected")).to_contain_text("y = x @")
    line.click()
    expect(source).to_be_hidden()
