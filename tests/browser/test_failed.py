"""The report of a block that failed: the call that raised is red."""

import contextlib
import re

import pytest
import torch
from axe_playwright_python.sync_playwright import Axe
from torch import nn

from meta_magic import record

pytestmark = pytest.mark.browser


def show(page, name):
    page.get_by_role("tab", name=name).click()
    return page.get_by_role("tabpanel", name=name)


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
