"""The cell as it is shown: its colours, and expressions over several lines."""

import contextlib
import re

import pytest
import torch
from axe_playwright_python.sync_playwright import Axe
from torch import nn

from meta_magic import record
from tests.browser.served import show

CELL = """%%meta -q
model = torch.nn.ReLU()
for i in range(2):  # twice
    y = model(
        torch.ones(
            3
        )
    )
    s = "of type \\N{BULLET}"
"""


@pytest.fixture
def source(serve, shell):
    """The source of a cell with an expression of several lines, in the report."""
    shell.run_cell(CELL).raise_error()
    page = serve(shell.user_ns["_meta"], roots=[])
    page.get_by_role("tab", name="Source").click()
    return page.get_by_role("tabpanel", name="Source")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_kinds_of_text_differ_in_colour_and_can_be_read(source, scheme):
    source.page.emulate_media(color_scheme=scheme)
    texts = ["for", "range", "2", "# twice", '"of type \\N{BULLET}"']
    colours = {
        source.get_by_text(text, exact=True).first.evaluate(
            "element => getComputedStyle(element).color"
        )
        for text in texts
    }
    assert len(colours) == len(texts)
    source.locator(".mm-source-expression").first.click()  # on what is marked, too
    results = Axe().run(source.page)
    assert results.violations_count == 0, results.generate_report()


def test_an_expression_of_several_lines_is_marked_on_all_of_them(source, expect):
    first = source.locator(".mm-source-expression").filter(has_text="model(")
    first.hover()
    expect(source.locator(".mm-near")).to_have_count(5)
    first.click()
    marked = source.locator(".mm-source-expression.mm-selected")
    expect(marked).to_have_text(["model(", "torch.ones(", "3", ")", ")"])


def test_an_expression_inside_of_one_of_several_lines_is_marked_alone(source, expect):
    source.locator(".mm-source-expression .mm-source-expression").first.click()
    marked = source.locator(".mm-source-expression.mm-selected")
    expect(marked).to_have_text(["torch.ones(", "3", ")"])


def test_an_expression_of_several_lines_is_one_stop_of_the_keyboard(source, expect):
    box = source.get_by_role("group", name="Source")
    stops = box.locator(".mm-source-expression[tabindex='0']")
    expect(stops).to_have_count(2)
    stops.first.focus()
    source.page.keyboard.press("Enter")
    expect(source.locator(".mm-source-expression.mm-selected")).to_have_count(5)


# The report of a block that failed: the call that raised is red


@pytest.fixture(scope="module")
def failed():
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(4, 2))
    with contextlib.suppress(RuntimeError), record() as trace:
        model(torch.ones(3, 8))
    return trace


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_operator_that_raised_is_red_in_each_view(serve, failed, scheme, expect):
    page = serve(failed)
    page.emulate_media(color_scheme=scheme)
    *_, last = show(page, "Operators").get_by_role("row").all()
    expect(last).to_contain_text("aten.addmm")
    expect(last).to_contain_text(failed.error)
    cell = last.get_by_role("gridcell").first
    color = cell.evaluate("(cell) => getComputedStyle(cell).color")
    red, green, blue = map(float, re.findall(r"[\d.]+", color))
    assert red > 1.3 * max(green, blue)
    assert Axe().run(page).violations_count == 0
    last.click()  # the flow brings it into sight
    expect(show(page, "Flow").locator(".mm-failed")).to_contain_text("✗ ")
    assert Axe().run(page).violations_count == 0


def test_the_report_of_a_failed_block_opens_where_it_failed(serve, failed, expect):
    page = serve(failed)
    words = "1: Linear(4 -> 2) got (3, 8) at line"
    expect(page.locator("header p").first).to_contain_text(words)
    row = show(page, "Modules").locator("[data-bad]")
    expect(row).to_have_count(1)
    expect(row).to_contain_text("Linear")
    expect(row).to_have_class("mm-selected")
    expect(
        show(page, "Operators").locator(".mm-selected[data-bad]")
    ).to_be_in_viewport()
    expect(show(page, "Flow").locator(".mm-failed.mm-selected")).to_be_in_viewport()


def test_the_closed_module_that_holds_the_failed_one_is_red(serve, failed, expect):
    page = serve(failed)
    modules = show(page, "Modules")
    modules.get_by_role("row").nth(1).locator("i").click()
    expect(modules.locator("[data-bad]")).to_have_count(1)
    expect(modules.locator("[data-bad]")).to_contain_text("model")


def test_the_expression_that_failed_is_marked_in_the_source(serve, shell, expect):
    shell.run_cell("%%meta -q\nx = torch.ones(2, 3)\ny = x @ x + 1")
    page = serve(shell.user_ns["_meta"], roots=[])
    source = show(page, "Source")
    expect(source.locator("[data-bad]")).to_have_text("x @ x")
    expect(source.locator(".mm-source-line.mm-selected")).to_contain_text("x @ x")
