"""The explanation of a failed cell beside a running kernel, in the real JupyterLab."""

import pytest

from tests.browser.lab import RUN

pytestmark = pytest.mark.browser

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
def why(open_notebook, expect):
    """The explanation of the cell that failed."""
    page = open_notebook("why.ipynb", *CELLS)
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
